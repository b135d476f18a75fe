//! Shell completions and man pages from the definition of the command line.

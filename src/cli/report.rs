//! Error to message, hint and exit code; the one table of exit codes.

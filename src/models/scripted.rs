//! Replies from a script file: tests, examples, the demo.

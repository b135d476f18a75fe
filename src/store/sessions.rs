//! Sessions and their messages.

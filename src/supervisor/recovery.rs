//! What to do with a folder whose keeper is gone: sweep, settle; retention.

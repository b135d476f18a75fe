//! Launch, poll, list, stop, wait: what the tools call.

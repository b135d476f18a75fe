//! One HTTP request to a provider: time-outs, statuses, the byte stream.

//! One batch of calls: permission, order, concurrency, size of results.

//! Looks after one running job until its end is recorded and announced.

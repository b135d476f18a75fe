//! Notices about ended jobs and their framing.

//! The settings a process child gets privately, and the parent's current mode.

//! Settings: defaults, user file, project files, environment, flags; each value knows its source.

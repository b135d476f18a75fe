//! Builds store, models, toolset, delegation and the main session from settings; one shutdown.

//! Providers and models: ready-made entries, settings, which model is meant and why.

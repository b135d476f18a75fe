//! Flow: models.

//! One rate gate per provider and key, shared by all processes of a user.

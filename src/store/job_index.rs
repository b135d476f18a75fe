//! Jobs by session; rebuilt from the folders when missing or behind.

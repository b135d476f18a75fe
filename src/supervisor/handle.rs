//! A running or ended payload: wait, look, stop; also opened from a folder by a later process.

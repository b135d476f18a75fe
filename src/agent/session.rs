//! A session: owns history and inbox, runs one turn at a time, saves before it announces.

//! Starts process agents and shells through the supervisor.

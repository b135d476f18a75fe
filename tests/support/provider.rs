//! A real HTTP server on loopback that speaks the providers' wire formats from a script.

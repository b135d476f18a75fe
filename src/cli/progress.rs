//! What a person sees on stderr while a run goes on.

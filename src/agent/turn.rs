//! One turn: request, stream, tool batch, inbox between steps, turn limit.

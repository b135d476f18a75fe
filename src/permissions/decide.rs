//! One call to allow, ask or deny, with the reason; the order of evaluation.

//! `Tool(specifier)` rules: parse, match, suggest.

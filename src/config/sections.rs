//! Which keys settings have, and the nearest one to a key that is not among them.

use crate::spelling::distance;

/// One key at the top of the settings, and what may stand below it.
#[derive(Clone, Copy, Debug)]
pub struct KnownSection {
    pub key: &'static str,
    pub shape: Shape,
}

/// What may stand at a key.
#[derive(Clone, Copy, Debug)]
pub enum Shape {
    /// A value; its type is the business of whoever reads it.
    Value,
    /// A table with these keys.
    Fields(&'static [(&'static str, Shape)]),
    /// A table whose keys are names that users choose.
    Named(&'static Shape),
    /// A table whose keys are those of [`Limits`](super::Limits).
    Limits,
}

/// The sections of the product.
pub const SECTIONS: &[KnownSection] = &[
    KnownSection { key: "model", shape: Shape::Value },
    KnownSection { key: "base_url", shape: Shape::Value },
    KnownSection { key: "permission_mode", shape: Shape::Value },
    KnownSection { key: "permission_prompt", shape: Shape::Value },
    KnownSection {
        key: "providers",
        shape: Shape::Named(&Shape::Fields(&[
            ("kind", Shape::Value),
            ("base_url", Shape::Value),
            ("api_key_env", Shape::Value),
            ("api_key_file", Shape::Value),
            ("api_key", Shape::Value),
        ])),
    },
    KnownSection { key: "permissions", shape: Shape::Fields(&[("allow", Shape::Value), ("ask", Shape::Value), ("deny", Shape::Value)]) },
    KnownSection {
        key: "sandbox",
        shape: Shape::Fields(&[("mode", Shape::Value), ("required", Shape::Value), ("network", Shape::Value), ("write", Shape::Value)]),
    },
    KnownSection {
        key: "agents",
        shape: Shape::Fields(&[
            ("models", Shape::Named(&Shape::Value)),
            ("skills_inherit_tools", Shape::Value),
            ("background_questions", Shape::Value),
        ]),
    },
    KnownSection { key: "instructions", shape: Shape::Fields(&[("claude_md", Shape::Value)]) },
    KnownSection { key: "memory", shape: Shape::Fields(&[("enabled", Shape::Value), ("use", Shape::Value), ("main", Shape::Value)]) },
    KnownSection { key: "skills", shape: Shape::Fields(&[("refused_in_children", Shape::Value)]) },
    KnownSection {
        key: "budget",
        shape: Shape::Fields(&[
            ("usd", Shape::Value),
            ("tokens", Shape::Value),
            ("turns", Shape::Value),
            ("time", Shape::Value),
            ("agent_usd", Shape::Value),
        ]),
    },
    KnownSection {
        key: "prices",
        shape: Shape::Named(&Shape::Fields(&[
            ("input", Shape::Value),
            ("output", Shape::Value),
            ("cache_read", Shape::Value),
            ("cache_write", Shape::Value),
        ])),
    },
    KnownSection {
        key: "web",
        shape: Shape::Fields(&[
            ("allow_private", Shape::Value),
            (
                "search",
                Shape::Fields(&[
                    ("kind", Shape::Value),
                    ("base_url", Shape::Value),
                    ("api_key_env", Shape::Value),
                    ("api_key_file", Shape::Value),
                    ("api_key", Shape::Value),
                ]),
            ),
        ]),
    },
    KnownSection { key: "shell", shape: Shape::Fields(&[("keep_keys", Shape::Value)]) },
    // Each bad entry is told by itself, and the others still load.
    KnownSection { key: "hooks", shape: Shape::Value },
    KnownSection { key: "limits", shape: Shape::Limits },
];

/// The known name that was probably meant.
pub(crate) fn nearest<'k>(name: &str, known: impl Iterator<Item = &'k str>) -> Option<&'k str> {
    let folded = |text: &str| text.to_ascii_lowercase().replace('-', "_");
    let wanted = folded(name);
    // A third of the letters may be wrong; beyond that a suggestion is a guess.
    let most = ((wanted.chars().count() + 1) / 3).max(1);
    known.map(|known| (distance(&wanted, &folded(known)), known)).filter(|(distance, _)| *distance <= most).min().map(|(_, known)| known)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_finds_the_key_that_was_meant() {
        let known = ["model", "base_url", "permission_mode", "providers"];
        let meant = |name| nearest(name, known.into_iter());
        assert_eq!(meant("modle"), Some("model"));
        assert_eq!(meant("base-url"), Some("base_url"));
        assert_eq!(meant("PermissionMode"), Some("permission_mode"));
        assert_eq!(meant("provider"), Some("providers"));
        assert_eq!(meant("colour"), None);
    }
}

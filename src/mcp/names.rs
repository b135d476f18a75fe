//! The names that tools of servers have for a model: `mcp__<server>__<tool>` (R139). Pure.

use std::collections::BTreeSet;

/// The characters a server or a tool has inside such a name.
pub fn part(name: &str) -> String {
    name.chars().map(|c| if c.is_ascii_alphanumeric() || matches!(c, '_' | '-') { c } else { '_' }).collect()
}

/// One name for each pair of server and tool, in their order, and a sentence for every clash: different names can become
/// equal when characters are replaced.
pub fn unique<'a>(tools: impl IntoIterator<Item = (&'a str, &'a str)>) -> (Vec<String>, Vec<String>) {
    let mut taken: BTreeSet<String> = BTreeSet::new();
    let mut clashes = Vec::new();
    let mut names = Vec::new();
    for (server, tool) in tools {
        let plain = format!("mcp__{}__{}", part(server), part(tool));
        let mut name = plain.clone();
        let mut count = 2_u32;
        while !taken.insert(name.clone()) {
            name = format!("{plain}_{count}");
            count += 1;
        }
        if name != plain {
            clashes.push(format!("tool {tool} of MCP server {server} is called {name}: {plain} is another one"));
        }
        names.push(name);
    }
    (names, clashes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// R139
    #[test]
    fn names_are_plain_and_clashes_are_told() {
        let (names, clashes) = unique([("git hub", "open.pr"), ("git.hub", "open/pr"), ("git hub", "list"), ("ü", "x-1")]);
        assert_eq!(names, ["mcp__git_hub__open_pr", "mcp__git_hub__open_pr_2", "mcp__git_hub__list", "mcp_____x-1"]);
        assert_eq!(clashes, ["tool open/pr of MCP server git.hub is called mcp__git_hub__open_pr_2: mcp__git_hub__open_pr is another one"]);
    }
}

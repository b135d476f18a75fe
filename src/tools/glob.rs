//! The tool `Glob`: files by name pattern, newest first.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use globset::{GlobBuilder, GlobMatcher};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::agent::tool::{ApprovalNeed, Tool, ToolContext, ToolFailure, ToolReply, ToolSpec};
use crate::models::ToolDeclaration;
use crate::permissions::{Effect, Policy};
use crate::tools::arguments::{annotated, parse};
use crate::tools::file_access::{self, Flow, shown};
use crate::tools::search::{self, Newest, Scope, WalkNotes};

pub struct Glob {
    spec: ToolSpec,
    policy: Arc<Policy>,
}

/// Files named in one reply.
const FILES_MAX: usize = 200;

#[derive(Deserialize)]
struct Arguments {
    pattern: String,
    path: Option<String>,
    #[serde(default)]
    hidden: bool,
    #[serde(default)]
    include_ignored: bool,
}

impl Glob {
    /// `policy`: whose `Read` rules leave files out.
    pub fn new(policy: Arc<Policy>) -> Self {
        let declaration = ToolDeclaration {
            name: "Glob".into(),
            description: format!(
                "Finds files by a name pattern such as \"**/*.rs\" or \"src/**/*.{{ts,tsx}}\", newest first, at most {FILES_MAX}. `*` and `?` stay \
                 inside one folder, `**` crosses folders. Files left out by .gitignore and hidden files are not given unless asked for."
            ),
            input_schema: json!({
                "type": "object",
                "properties": {
                    "pattern": {"type": "string", "description": "The pattern, relative to `path`"},
                    "path": {"type": "string", "description": "Folder to search (default: the working directory)"},
                    "hidden": {"type": "boolean", "description": "Also names that begin with a dot (default false)"},
                    "include_ignored": {"type": "boolean", "description": "Also what .gitignore leaves out (default false)"}
                },
                "required": ["pattern"]
            }),
        };
        Self { spec: ToolSpec { declaration, aliases: &[], concurrent: true, approval: ApprovalNeed::ByEffect }, policy }
    }
}

impl Tool for Glob {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn effect(&self, input: &Value, context: &ToolContext) -> Result<Effect, ToolFailure> {
        let arguments = parse::<Arguments>(&self.spec.declaration, input)?.value;
        Ok(Effect::Reads(Wanted::of(&arguments, &context.cwd)?.root))
    }

    fn call<'a>(&'a self, input: Value, context: ToolContext) -> BoxFuture<'a, Result<ToolReply, ToolFailure>> {
        async move {
            let parsed = parse::<Arguments>(&self.spec.declaration, &input)?;
            let wanted = Wanted::of(&parsed.value, &context.cwd)?;
            let (policy, cwd) = (self.policy.clone(), context.cwd.clone());
            let reply = file_access::blocking(&context.cancel, move |cancel| find(&wanted, &policy, &cwd, cancel)).await?;
            Ok(annotated(&parsed.notes, reply))
        }
        .boxed()
    }
}

/// A folder and what to match below it.
struct Wanted {
    root: PathBuf,
    pattern: String,
    matcher: GlobMatcher,
    scope: Scope,
}

impl Wanted {
    /// The plain folders at the beginning of the pattern become part of the root: only what can match is walked.
    fn of(arguments: &Arguments, cwd: &Path) -> Result<Self, ToolFailure> {
        let base = match &arguments.path {
            Some(path) => file_access::resolve(cwd, "path", path)?,
            None => cwd.to_owned(),
        };
        if arguments.pattern.trim().is_empty() {
            return Err(ToolFailure::invalid("`pattern` is empty").with_hint("for all files write \"**/*\""));
        }
        let root_and_rest = arguments.pattern.strip_prefix('/');
        let (mut root, pattern) = match root_and_rest {
            Some(rest) => (PathBuf::from("/"), rest),
            None => (base, arguments.pattern.as_str()),
        };
        if pattern.starts_with("~/") {
            file_access::resolve(cwd, "pattern", pattern)?;
        }
        let mut rest = pattern.trim_end_matches('/');
        while let Some((folder, below)) = rest.split_once('/') {
            if folder.contains(['*', '?', '[', '{', '\\']) {
                break;
            }
            root.push(folder);
            rest = below.trim_start_matches('/');
        }
        let hidden = arguments.hidden || rest.split('/').any(|part| part.starts_with('.')) || rest.contains("{.") || rest.contains(",.");
        let scope = Scope { hidden, ignored: arguments.include_ignored };
        Ok(Self { root, pattern: rest.to_owned(), matcher: matcher(rest)?, scope })
    }
}

fn matcher(pattern: &str) -> Result<GlobMatcher, ToolFailure> {
    let glob = GlobBuilder::new(pattern).literal_separator(true).backslash_escape(true).build();
    glob.map(|glob| glob.compile_matcher()).map_err(|error| {
        ToolFailure::invalid(format!("`pattern` {pattern:?} is no valid pattern: {}", error.kind()))
            .with_hint("`*`, `**`, `?`, `[ab]` and `{a,b}` are known; a backslash takes the next character as it is")
    })
}

fn find(wanted: &Wanted, policy: &Arc<Policy>, cwd: &Path, cancel: &CancellationToken) -> Result<ToolReply, ToolFailure> {
    let metadata = std::fs::metadata(&wanted.root).map_err(|error| file_access::cannot("search", &wanted.root, &error))?;
    if !metadata.is_dir() {
        return Err(ToolFailure::invalid(format!("{} is not a folder", wanted.root.display()))
            .with_hint("give a folder as `path`; to see one file use Read"));
    }
    let mut found = Newest::new(FILES_MAX);
    let mut deeper = 0_u64;
    let deeper_matcher = (!wanted.pattern.contains('/')).then(|| matcher(&format!("**/{}", wanted.pattern))).transpose()?;
    let mut notes = WalkNotes::default();
    search::walk(&wanted.root, wanted.scope, policy, cancel, &mut notes, |path, _| {
        let below = path.strip_prefix(&wanted.root).unwrap_or(&path);
        if wanted.matcher.is_match(below) {
            found.add(path);
        } else if deeper_matcher.as_ref().is_some_and(|matcher| matcher.is_match(below)) {
            deeper += 1;
        }
        Ok(Flow::More)
    })?;
    let total = found.seen;
    let files: Vec<String> = found.into_sorted().iter().map(|path| shown(path, cwd)).collect();
    let mut remarks = Vec::new();
    if total == 0 {
        remarks.push(format!("no file matches {:?} in {}", wanted.pattern, wanted.root.display()));
        if deeper > 0 {
            remarks.push(format!("{} further down would match \"**/{}\"", search::count(deeper, "file"), wanted.pattern));
        } else if !wanted.scope.ignored {
            remarks.push("files left out by .gitignore are not searched; set `include_ignored` to search them too".to_owned());
        }
    } else if total > FILES_MAX as u64 {
        remarks.push(format!("the newest {FILES_MAX} of {total} files; narrow the pattern or the path to see others"));
    }
    remarks.extend(notes.lines());
    let structured = json!({"files": files, "total": total});
    Ok(ToolReply { text: search::with_notes(files.join("\n"), &remarks), structured: Some(structured) })
}

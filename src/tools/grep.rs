//! The tool `Grep`: a regular expression over the files of a folder.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use grep_regex::{RegexMatcher, RegexMatcherBuilder};
use grep_searcher::{BinaryDetection, Searcher, SearcherBuilder, Sink, SinkContext, SinkFinish, SinkMatch};
use ignore::overrides::{Override, OverrideBuilder};
use ignore::types::{Types, TypesBuilder};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::agent::tool::{ApprovalNeed, Tool, ToolContext, ToolFailure, ToolReply, ToolSpec};
use crate::models::ToolDeclaration;
use crate::permissions::{Effect, Policy};
use crate::tools::arguments::{annotated, nearest, parse};
use crate::tools::file_access::{self, Flow, shown};
use crate::tools::search::{self, Newest, Scope, WalkNotes, count};

pub struct Grep {
    spec: ToolSpec,
    policy: Arc<Policy>,
}

/// Lines or files in one reply, when the call names no limit.
const ENTRIES_DEFAULT: u64 = 250;
const ENTRIES_MAX: u64 = 10_000;
/// Below the limit of one tool result, so that the closing note is always seen.
const REPLY_BYTES_MAX: usize = 90 * 1024;
const LINE_CHARACTERS_MAX: usize = 500;
const CONTEXT_LINES_MAX: u64 = 100;
/// Of one line, or of one file when matches may cross lines.
const HEAP_MAX: usize = 64 * 1024 * 1024;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum OutputMode {
    Content,
    #[default]
    FilesWithMatches,
    Count,
}

#[derive(Clone, Deserialize)]
struct Arguments {
    pattern: String,
    path: Option<String>,
    glob: Option<String>,
    r#type: Option<String>,
    #[serde(default)]
    output_mode: OutputMode,
    #[serde(rename = "-A")]
    after: Option<u64>,
    #[serde(rename = "-B")]
    before: Option<u64>,
    #[serde(rename = "-C")]
    around: Option<u64>,
    #[serde(rename = "-i", default)]
    ignore_case: bool,
    #[serde(rename = "-n", default = "yes")]
    numbers: bool,
    head_limit: Option<u64>,
    #[serde(default)]
    multiline: bool,
    #[serde(default)]
    hidden: bool,
    #[serde(default)]
    include_ignored: bool,
}

fn yes() -> bool {
    true
}

impl Grep {
    /// `policy`: whose `Read` rules leave files out.
    pub fn new(policy: Arc<Policy>) -> Self {
        let declaration = ToolDeclaration {
            name: "Grep".into(),
            description:
                "Searches file contents with a regular expression (Rust syntax: escape literal braces, e.g. `interface\\{\\}`). Files \
                          left out by .gitignore, hidden files and binary files are not searched. Output modes: `files_with_matches` \
                          (default, newest first), `content` (matching lines), `count`."
                    .into(),
            input_schema: schema(),
        };
        Self { spec: ToolSpec { declaration, aliases: &[], concurrent: true, approval: ApprovalNeed::ByEffect }, policy }
    }
}

fn schema() -> Value {
    json!({
        "type": "object",
        "properties": {
            "pattern": {"type": "string", "description": "The regular expression"},
            "path": {"type": "string", "description": "File or folder to search (default: the working directory)"},
            "glob": {"type": "string", "description": "Only files that match, e.g. \"*.js\" or \"src/**/*.rs\"; `!` in front leaves them out"},
            "type": {"type": "string", "description": "Only files of a type, e.g. rust, py, js, go, md"},
            "output_mode": {"type": "string", "enum": ["content", "files_with_matches", "count"]},
            "-A": {"type": "integer", "minimum": 0, "description": "Lines after each match (content)"},
            "-B": {"type": "integer", "minimum": 0, "description": "Lines before each match (content)"},
            "-C": {"type": "integer", "minimum": 0, "description": "Lines before and after each match (content)"},
            "-i": {"type": "boolean", "description": "Ignore letter case"},
            "-n": {"type": "boolean", "description": "Line numbers (content; default true)"},
            "head_limit": {"type": "integer", "minimum": 0, "description": "At most so many lines or files (default 250; 0: as many as fit)"},
            "multiline": {"type": "boolean", "description": "`.` matches line breaks and matches may cross lines"},
            "hidden": {"type": "boolean", "description": "Also names that begin with a dot (default false)"},
            "include_ignored": {"type": "boolean", "description": "Also what .gitignore leaves out (default false)"}
        },
        "required": ["pattern"]
    })
}

impl Tool for Grep {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn effect(&self, input: &Value, context: &ToolContext) -> Result<Effect, ToolFailure> {
        let arguments = parse::<Arguments>(&self.spec.declaration, input)?.value;
        root(&arguments, &context.cwd).map(Effect::Reads)
    }

    fn call<'a>(&'a self, input: Value, context: ToolContext) -> BoxFuture<'a, Result<ToolReply, ToolFailure>> {
        async move {
            let parsed = parse::<Arguments>(&self.spec.declaration, &input)?;
            let job = Job::new(parsed.value, &context.cwd, self.policy.clone())?;
            let reply = file_access::blocking(&context.cancel, move |cancel| job.run(cancel)).await?;
            Ok(annotated(&parsed.notes, reply))
        }
        .boxed()
    }
}

fn root(arguments: &Arguments, cwd: &Path) -> Result<PathBuf, ToolFailure> {
    match &arguments.path {
        Some(path) => file_access::resolve(cwd, "path", path),
        None => Ok(cwd.to_owned()),
    }
}

/// One search, checked.
struct Job {
    arguments: Arguments,
    root: PathBuf,
    cwd: PathBuf,
    policy: Arc<Policy>,
    matcher: RegexMatcher,
    chosen: Chosen,
    limit: u64,
}

/// Which files are searched by their names.
struct Chosen {
    globs: Override,
    types: Types,
}

impl Chosen {
    fn covers(&self, path: &Path) -> bool {
        !self.globs.matched(path, false).is_ignore() && !self.types.matched(path, false).is_ignore()
    }
}

impl Job {
    fn new(arguments: Arguments, cwd: &Path, policy: Arc<Policy>) -> Result<Self, ToolFailure> {
        let root = root(&arguments, cwd)?;
        let matcher = matcher(&arguments)?;
        let chosen = Chosen { globs: globs(arguments.glob.as_deref(), &root)?, types: types(arguments.r#type.as_deref())? };
        let limit = match arguments.head_limit {
            None => ENTRIES_DEFAULT,
            Some(0) => ENTRIES_MAX,
            Some(limit) => limit.min(ENTRIES_MAX),
        };
        Ok(Self { arguments, root, cwd: cwd.to_owned(), policy, matcher, chosen, limit })
    }

    fn run(&self, cancel: &CancellationToken) -> Result<ToolReply, ToolFailure> {
        let metadata = std::fs::metadata(&self.root).map_err(|error| file_access::cannot("search", &self.root, &error))?;
        let mut notes = WalkNotes::default();
        let mut results = Results::new(self.limit);
        let mut searcher = self.searcher();
        if metadata.is_dir() {
            let scope = Scope { hidden: self.arguments.hidden, ignored: self.arguments.include_ignored };
            search::walk(&self.root, scope, &self.policy, cancel, &mut notes, |path, notes| {
                if self.chosen.covers(&path) {
                    self.search_file(path, &mut searcher, &mut results, notes, cancel)?;
                }
                Ok(if results.is_full() { Flow::Enough } else { Flow::More })
            })?;
        } else {
            self.search_file(self.root.clone(), &mut searcher, &mut results, &mut notes, cancel)?;
        }
        if cancel.is_cancelled() {
            return Err(file_access::cancelled());
        }
        Ok(self.reply(results, &notes, metadata.is_dir()))
    }

    fn searcher(&self) -> Searcher {
        let is_content = self.arguments.output_mode == OutputMode::Content;
        let context = |own: Option<u64>| {
            let lines = if is_content { own.or(self.arguments.around).unwrap_or(0) } else { 0 };
            lines.min(CONTEXT_LINES_MAX) as usize
        };
        SearcherBuilder::new()
            .binary_detection(BinaryDetection::quit(0))
            .line_number(true)
            .multi_line(self.arguments.multiline)
            .before_context(context(self.arguments.before))
            .after_context(context(self.arguments.after))
            .heap_limit(Some(HEAP_MAX))
            .build()
    }

    fn search_file(
        &self,
        path: PathBuf,
        searcher: &mut Searcher,
        results: &mut Results,
        notes: &mut WalkNotes,
        cancel: &CancellationToken,
    ) -> Result<(), ToolFailure> {
        let (file, _) = match file_access::open_regular(&path) {
            Ok(opened) => opened,
            // the one file that was named
            Err(failure) if path == self.root => return Err(failure),
            Err(failure) => {
                notes.unreadable(failure.message);
                return Ok(());
            }
        };
        if has_nul_at_start(&file) {
            results.n_binary += 1;
            return Ok(());
        }
        let name = shown(&path, &self.cwd);
        let mut sink = FileSink {
            mode: self.arguments.output_mode,
            numbers: self.arguments.numbers,
            name: &name,
            room: results.room(),
            bytes_room: REPLY_BYTES_MAX.saturating_sub(results.bytes),
            found: FileFound::default(),
            is_binary: false,
            last_line: None,
            cancel,
        };
        match searcher.search_file(&self.matcher, &file, &mut sink) {
            Ok(()) => {}
            Err(SearchEnd::Cancelled) => return Err(file_access::cancelled()),
            Err(SearchEnd::Failed(error)) => notes.unreadable(format!("{name}: {error}")),
        }
        if sink.is_binary {
            results.n_binary += 1;
            return Ok(());
        }
        if sink.found.n_matches > 0 {
            let found = sink.found;
            results.add(self.arguments.output_mode, path, &name, found);
        }
        Ok(())
    }

    fn reply(&self, results: Results, notes: &WalkNotes, is_folder: bool) -> ToolReply {
        let mut remarks = Vec::new();
        let (n_matches, n_files, n_binary, overflowed) = (results.n_matches, results.newest.seen, results.n_binary, results.overflowed);
        let limit = self.limit;
        let lines = match self.arguments.output_mode {
            OutputMode::FilesWithMatches => {
                let files: Vec<String> = results.newest.into_sorted().iter().map(|path| shown(path, &self.cwd)).collect();
                let (files, cut) = cut_to_bytes(files);
                if n_files > files.len() as u64 {
                    let why = if cut { "the reply is full" } else { "`head_limit`" };
                    remarks.push(format!("the newest {} of {n_files} files ({why})", files.len()));
                }
                files
            }
            OutputMode::Content | OutputMode::Count => {
                if overflowed {
                    remarks.push(format!(
                        "stopped after {limit} lines or a full reply; there is more: narrow `pattern`, `path` or `glob`, or raise `head_limit`"
                    ));
                } else if self.arguments.output_mode == OutputMode::Count && n_files > 0 {
                    remarks.push(format!("{} in {}", count(n_matches, "match"), count(n_files, "file")));
                }
                results.lines
            }
        };
        if n_files == 0 {
            remarks.push(format!("no match for {:?} in {}", self.arguments.pattern, self.root.display()));
        }
        if n_binary > 0 && !is_folder {
            remarks.push("the file is binary and was not searched; use `grep -a` in Bash to search it".to_owned());
        }
        remarks.extend(notes.lines());
        let structured = json!({"files": n_files, "matches": n_matches, "complete": !overflowed});
        ToolReply { text: search::with_notes(lines.join("\n"), &remarks), structured: Some(structured) }
    }
}

/// Everything found so far, bounded.
struct Results {
    limit: u64,
    lines: Vec<String>,
    bytes: usize,
    newest: Newest,
    n_matches: u64,
    n_binary: u64,
    overflowed: bool,
}

impl Results {
    fn new(limit: u64) -> Self {
        Self { limit, lines: Vec::new(), bytes: 0, newest: Newest::new(limit as usize), n_matches: 0, n_binary: 0, overflowed: false }
    }

    /// Lines that still fit.
    fn room(&self) -> u64 {
        self.limit.saturating_sub(self.lines.len() as u64)
    }

    fn is_full(&self) -> bool {
        self.overflowed
    }

    fn add(&mut self, mode: OutputMode, path: PathBuf, name: &str, found: FileFound) {
        match mode {
            OutputMode::FilesWithMatches => {}
            OutputMode::Content => {
                self.bytes += found.bytes;
                self.lines.extend(found.lines);
            }
            OutputMode::Count if self.room() == 0 || self.bytes + name.len() > REPLY_BYTES_MAX => {
                self.overflowed = true;
                return;
            }
            OutputMode::Count => {
                self.bytes += name.len() + 8;
                self.lines.push(format!("{name}:{}", found.n_matches));
            }
        }
        self.n_matches += found.n_matches;
        self.newest.add(path);
        self.overflowed |= found.overflowed;
    }
}

fn cut_to_bytes(mut files: Vec<String>) -> (Vec<String>, bool) {
    let mut bytes = 0;
    let fits = files.iter().take_while(|name| {
        bytes += name.len() + 1;
        bytes <= REPLY_BYTES_MAX
    });
    let n_fits = fits.count();
    let cut = n_fits < files.len();
    files.truncate(n_fits);
    (files, cut)
}

/// What one file gave.
#[derive(Default)]
struct FileFound {
    lines: Vec<String>,
    bytes: usize,
    n_matches: u64,
    /// There was more than fits.
    overflowed: bool,
}

/// Takes the matches of one file; they count only when the file turns out to be text.
struct FileSink<'a> {
    mode: OutputMode,
    numbers: bool,
    name: &'a str,
    room: u64,
    bytes_room: usize,
    found: FileFound,
    is_binary: bool,
    /// Number of the last line given, to see gaps.
    last_line: Option<u64>,
    cancel: &'a CancellationToken,
}

enum SearchEnd {
    Cancelled,
    Failed(std::io::Error),
}

impl grep_searcher::SinkError for SearchEnd {
    fn error_message<T: std::fmt::Display>(message: T) -> Self {
        Self::Failed(std::io::Error::other(message.to_string()))
    }

    fn error_io(error: std::io::Error) -> Self {
        Self::Failed(error)
    }
}

impl FileSink<'_> {
    /// Whether there was room.
    fn push(&mut self, number: Option<u64>, sign: char, bytes: &[u8]) -> bool {
        let text = String::from_utf8_lossy(bytes);
        for (index, line) in text.trim_end_matches(['\n', '\r']).split('\n').enumerate() {
            let number = number.map(|number| number + index as u64);
            let cut = line.char_indices().nth(LINE_CHARACTERS_MAX).map_or(line.len(), |(at, _)| at);
            let mark = if cut < line.len() { " [line cut]" } else { "" };
            let shown = line[..cut].trim_end_matches('\r');
            let place = match number.filter(|_| self.numbers) {
                Some(number) => format!("{sign}{number}{sign}"),
                None => sign.to_string(),
            };
            let entry = format!("{}{place}{shown}{mark}", self.name);
            if self.found.lines.len() as u64 >= self.room || self.found.bytes + entry.len() > self.bytes_room {
                self.found.overflowed = true;
                return false;
            }
            self.found.bytes += entry.len() + 1;
            self.found.lines.push(entry);
            self.last_line = number;
        }
        true
    }
}

impl Sink for FileSink<'_> {
    type Error = SearchEnd;

    fn matched(&mut self, _searcher: &Searcher, found: &SinkMatch<'_>) -> Result<bool, SearchEnd> {
        if self.cancel.is_cancelled() {
            return Err(SearchEnd::Cancelled);
        }
        self.found.n_matches += 1;
        match self.mode {
            // one match tells all there is to know, but a NUL byte may still follow
            OutputMode::FilesWithMatches => Ok(false),
            OutputMode::Count => Ok(true),
            OutputMode::Content => Ok(self.push(found.line_number(), ':', found.bytes())),
        }
    }

    fn context(&mut self, _searcher: &Searcher, context: &SinkContext<'_>) -> Result<bool, SearchEnd> {
        if self.cancel.is_cancelled() {
            return Err(SearchEnd::Cancelled);
        }
        Ok(self.push(context.line_number(), '-', context.bytes()))
    }

    fn context_break(&mut self, _searcher: &Searcher) -> Result<bool, SearchEnd> {
        if self.last_line.is_some() && (self.found.lines.len() as u64) < self.room {
            self.found.lines.push("--".to_owned());
        }
        Ok(true)
    }

    fn finish(&mut self, _searcher: &Searcher, end: &SinkFinish) -> Result<(), SearchEnd> {
        self.is_binary = end.binary_byte_offset().is_some();
        Ok(())
    }
}

/// Text in UTF-16 has NUL bytes too, but says so with its first two bytes; the searcher decodes it.
fn has_nul_at_start(file: &File) -> bool {
    const PROBE_BYTES: usize = 8 * 1024;
    let mut probe = [0; PROBE_BYTES];
    let length = file.read_at(&mut probe, 0).unwrap_or(0);
    let probe = &probe[..length];
    probe.contains(&0) && !probe.starts_with(b"\xff\xfe") && !probe.starts_with(b"\xfe\xff")
}

fn matcher(arguments: &Arguments) -> Result<RegexMatcher, ToolFailure> {
    if arguments.pattern.is_empty() {
        return Err(ToolFailure::invalid("`pattern` is empty").with_hint("write the regular expression to search for"));
    }
    let mut builder = RegexMatcherBuilder::new();
    builder.case_insensitive(arguments.ignore_case).multi_line(true);
    if arguments.multiline {
        builder.dot_matches_new_line(true);
    } else {
        builder.line_terminator(Some(b'\n'));
    }
    builder.build(&arguments.pattern).map_err(|error| {
        let text = error.to_string();
        let hint = if text.contains("\\n") && !arguments.multiline {
            "set `multiline` to true to search across lines"
        } else {
            "escape characters that are meant literally, e.g. `\\(`, `\\{`, `\\[`; look-around and back-references do not exist here"
        };
        ToolFailure::invalid(format!("`pattern` is no valid regular expression: {text}")).with_hint(hint)
    })
}

fn globs(glob: Option<&str>, root: &Path) -> Result<Override, ToolFailure> {
    let Some(glob) = glob.filter(|glob| !glob.trim().is_empty()) else { return Ok(Override::empty()) };
    let mut builder = OverrideBuilder::new(root);
    builder.add(glob).and_then(|builder| builder.build()).map_err(|error| {
        ToolFailure::invalid(format!("`glob` {glob:?} is no valid pattern: {error}"))
            .with_hint("write e.g. \"*.rs\" or \"src/**/*.{ts,tsx}\"")
    })
}

fn types(name: Option<&str>) -> Result<Types, ToolFailure> {
    let Some(name) = name.filter(|name| !name.trim().is_empty()) else { return Ok(Types::empty()) };
    let mut builder = TypesBuilder::new();
    builder.add_defaults();
    let known = builder.definitions();
    if !known.iter().any(|definition| definition.name() == name) {
        let failure = ToolFailure::invalid(format!("`type` {name:?} is not a known file type"));
        return Err(match nearest(name, known.iter().map(|definition| definition.name())) {
            Some(near) => failure.with_hint(format!("did you mean {near:?}? or choose files with `glob`, e.g. \"*.{name}\"")),
            None => failure.with_hint(format!("choose files with `glob` instead, e.g. \"*.{name}\"")),
        });
    }
    builder.select(name);
    builder.build().map_err(|error| ToolFailure::invalid(format!("`type` {name:?} cannot be used: {error}")))
}

//! All profiles in one table: built-in, plugin, user, project, command line; which of equal names holds and why
//! (R55 to R70). A live catalog reads again what changed, when it is next asked (R67).

use std::collections::{BTreeMap, HashMap, HashSet};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use super::matching::{self, Candidate, MatchError};
use super::parse::{self, Parsed};
use super::places::{self, Found, Stamp};
use super::profile::{EXPLORE, GENERAL_PURPOSE, Level, Origin, PLAN, Profile};
use super::state_file::{self, AgentsState};
use crate::config::layout::{self, Layout, ProjectLayout};
use crate::frontmatter::{Code, Diagnostic, Severity};
use crate::hooks::HookSet;
use crate::permissions::trust::Trust;

/// Where profiles are looked for.
#[derive(Clone, Debug)]
pub struct Sources {
    pub layout: Layout,
    /// The user's home folder, for the folders of other programs.
    pub home: Option<PathBuf>,
    pub cwd: PathBuf,
    pub plugins: Vec<Plugin>,
    /// Profiles of `--agents`, read by `parse::parse_command_line`.
    pub command_line: Vec<Parsed>,
    /// Which files of the project a person has trusted.
    pub trust: Trust,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plugin {
    pub name: String,
    pub root: PathBuf,
}

/// One profile that was read, with its diagnostics.
#[derive(Clone, Debug, PartialEq)]
pub struct Definition {
    pub profile: Arc<Profile>,
    pub diagnostics: Vec<Diagnostic>,
}

/// A definition that does not hold, and why.
#[derive(Clone, Debug, PartialEq)]
pub struct Replaced {
    pub definition: Definition,
    pub reason: String,
    /// Switched off in the state file rather than replaced.
    pub disabled: bool,
}

/// The table at one moment.
#[derive(Clone, Debug, Default)]
pub struct Catalog {
    /// Those that hold, by canonical name.
    definitions: BTreeMap<String, Definition>,
    candidates: Vec<Candidate>,
    replaced: Vec<Replaced>,
    /// Of files that gave no profile, of folders, of names and of the state file.
    diagnostics: Vec<Diagnostic>,
    state: AgentsState,
    files_read: usize,
}

/// One folder with the level its files have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    pub folder: PathBuf,
    pub level: Level,
    pub plugin: Option<String>,
}

/// A file's content, remembered as long as its stamp stays.
type Cache = HashMap<(PathBuf, Option<String>), (Stamp, Arc<Parsed>)>;

/// Below this number of files, threads cost more than they save.
const FILES_PER_THREAD_MIN: usize = 64;

impl Sources {
    /// The places in order of precedence, the one that wins last.
    ///
    /// The level decides first, then nearness to the working directory, then `.zapmyco` over `.zcode` over `.claude`.
    pub fn places(&self) -> Vec<Place> {
        let mut places = Vec::new();
        for plugin in &self.plugins {
            let folder = layout::plugin_profiles(&plugin.root);
            places.push(Place { folder, level: Level::Plugin, plugin: Some(plugin.name.clone()) });
        }
        let mut add = |folder: PathBuf, level: Level| places.push(Place { folder, level, plugin: None });
        if let Some(home) = &self.home {
            layout::foreign_profile_folders(home).into_iter().for_each(|folder| add(folder, Level::User));
        }
        add(self.layout.user_profiles(), Level::User);
        for folder in self.project_folders().into_iter().rev() {
            layout::foreign_profile_folders(folder).into_iter().for_each(|folder| add(folder, Level::Project));
            add(ProjectLayout::new(folder.to_owned()).profiles(), Level::Project);
        }
        without_repetition(places)
    }

    /// From the working directory up to the root of its repository; alone when there is none.
    fn project_folders(&self) -> Vec<&Path> {
        match layout::repository_root(&self.cwd) {
            Some(root) => self.cwd.ancestors().take_while(|folder| folder.starts_with(root)).collect(),
            None => vec![&self.cwd],
        }
    }
}

/// When the working directory is the home folder, the user's folders are not the project's too.
fn without_repetition(places: Vec<Place>) -> Vec<Place> {
    let mut seen = HashSet::new();
    let is_new = |place: &Place| match std::fs::metadata(&place.folder) {
        Ok(metadata) => seen.insert((metadata.dev(), metadata.ino())),
        Err(_) => true,
    };
    let mut is_new = is_new;
    places.into_iter().filter(|place| is_new(place)).collect()
}

impl Catalog {
    /// Reads everything. Never fails: what cannot be read is a diagnostic.
    pub fn load(sources: &Sources) -> Catalog {
        read_all(sources, &mut Cache::new())
    }

    /// The definition that holds for exactly this name.
    pub fn get(&self, name: &str) -> Option<&Definition> {
        self.definitions.get(name)
    }

    /// The definition that a name written by a model means (R35 to R39).
    pub fn resolve(&self, wanted: &str) -> Result<&Definition, MatchError> {
        let name = matching::resolve(&self.candidates, wanted)?;
        // A candidate is made from a definition.
        self.definitions.get(name).ok_or_else(|| MatchError::NotFound { wanted: name.to_owned(), available: String::new(), nearest: None })
    }

    /// Those that hold, by name.
    pub fn definitions(&self) -> impl Iterator<Item = &Definition> {
        self.definitions.values()
    }

    /// Other names that lead to a profile (R62).
    pub fn aliases(&self, name: &str) -> &[String] {
        self.candidates.iter().find(|candidate| candidate.name == name).map_or(&[], |candidate| &candidate.aliases)
    }

    pub fn replaced(&self) -> &[Replaced] {
        &self.replaced
    }

    /// Diagnostics that belong to no profile that holds.
    pub fn diagnostics(&self) -> &[Diagnostic] {
        &self.diagnostics
    }

    /// Every diagnostic: of those that hold, of those that do not, and of no profile.
    pub fn all_diagnostics(&self) -> impl Iterator<Item = &Diagnostic> {
        let held = self.definitions.values().flat_map(|definition| &definition.diagnostics);
        let replaced = self.replaced.iter().flat_map(|replaced| &replaced.definition.diagnostics);
        held.chain(replaced).chain(&self.diagnostics)
    }

    /// The state file's model for a profile, as written (R69, R70).
    pub fn model_override(&self, profile: &Profile) -> Option<&str> {
        let models = match profile.origin.level {
            Level::BuiltIn => &self.state.built_in_models,
            Level::Plugin => &self.state.plugin_models,
            Level::User | Level::Project | Level::CommandLine => return None,
        };
        models.get(&profile.name).map(String::as_str)
    }

    pub fn state(&self) -> &AgentsState {
        &self.state
    }

    /// Profile files that were found.
    pub fn files_read(&self) -> usize {
        self.files_read
    }
}

/// A catalog that is current whenever it is asked.
#[derive(Debug)]
pub struct LiveCatalog {
    sources: Sources,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    cache: Cache,
    stamps: Option<Vec<(PathBuf, Stamp)>>,
    catalog: Arc<Catalog>,
}

impl LiveCatalog {
    pub fn new(sources: Sources) -> Self {
        Self { sources, known: Mutex::default() }
    }

    /// What a person has trusted in the project.
    pub(crate) fn trust(&self) -> &Trust {
        &self.sources.trust
    }

    /// The table as the folders are now. Only changed files are read again; blocking, a few milliseconds at most for
    /// collections of ordinary size.
    pub fn current(&self) -> Arc<Catalog> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let walks = walk_all(&self.sources);
        let stamps = stamps_of(&self.sources, &walks);
        let is_unchanged = known.stamps.as_ref() == Some(&stamps) && walks.iter().all(|(_, walk)| walk.diagnostics.is_empty());
        if !is_unchanged {
            let catalog = Arc::new(assemble(&self.sources, walks, &mut known.cache));
            known.catalog = catalog;
            known.stamps = Some(stamps);
        }
        Arc::clone(&known.catalog)
    }
}

fn read_all(sources: &Sources, cache: &mut Cache) -> Catalog {
    assemble(sources, walk_all(sources), cache)
}

fn walk_all(sources: &Sources) -> Vec<(Place, places::Walk)> {
    sources.places().into_iter().map(|place| (place.clone(), places::walk(&place.folder))).collect()
}

fn stamps_of(sources: &Sources, walks: &[(Place, places::Walk)]) -> Vec<(PathBuf, Stamp)> {
    let files = walks.iter().flat_map(|(_, walk)| walk.files.iter().map(|found| (found.path.clone(), found.stamp)));
    let state = sources.layout.agents_state();
    let state = std::fs::metadata(&state).ok().map(|metadata| (state, places::stamp_of(&metadata)));
    files.chain(state).collect()
}

fn assemble(sources: &Sources, walks: Vec<(Place, places::Walk)>, cache: &mut Cache) -> Catalog {
    let (state, state_notes) = state_file::read(&sources.layout.agents_state());
    let mut catalog = Catalog { state, diagnostics: state_notes, ..Catalog::default() };
    for parsed in built_in() {
        catalog.add(parsed, None);
    }
    let mut fresh = Cache::new();
    for (place, walk) in walks {
        catalog.diagnostics.extend(walk.diagnostics);
        catalog.files_read += walk.files.len();
        let parsed = parse_files(&walk.files, &place, (&sources.trust, &sources.cwd), cache);
        for (found, parsed) in walk.files.into_iter().zip(parsed) {
            catalog.add((*parsed).clone(), Some(&place));
            fresh.insert((found.path, place.plugin.clone()), (found.stamp, parsed));
        }
    }
    for parsed in &sources.command_line {
        catalog.add(parsed.clone(), None);
    }
    *cache = fresh;
    catalog.name_candidates();
    catalog
}

/// Parses the files of one place, in threads when there are many. What stands in the cache unchanged is taken from it.
fn parse_files(files: &[Found], place: &Place, trust: (&Trust, &Path), cache: &Cache) -> Vec<Arc<Parsed>> {
    let parse_one = |found: &Found| -> Arc<Parsed> {
        match cache.get(&(found.path.clone(), place.plugin.clone())) {
            Some((stamp, parsed)) if *stamp == found.stamp => Arc::clone(parsed),
            _ => Arc::new(parse_file(&found.path, place.level, place.plugin.clone(), trust)),
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(files.len() / FILES_PER_THREAD_MIN).max(1);
    if threads == 1 {
        return files.iter().map(parse_one).collect();
    }
    std::thread::scope(|scope| {
        let workers: Vec<_> = files
            .chunks(files.len().div_ceil(threads))
            .map(|chunk| (chunk, scope.spawn(|| chunk.iter().map(parse_one).collect::<Vec<_>>())))
            .collect();
        // A thread that fails is done again here, so that its files are told and not lost.
        workers.into_iter().flat_map(|(chunk, worker)| worker.join().unwrap_or_else(|_| chunk.iter().map(parse_one).collect())).collect()
    })
}

/// Reads one file as a profile of the given level.
///
/// `cwd`: where its hooks would run.
pub fn parse_file(path: &Path, level: Level, plugin: Option<String>, (trust, cwd): (&Trust, &Path)) -> Parsed {
    match places::read(path) {
        Ok(text) => {
            // For the bytes that are parsed, not for what the file may be a moment later.
            let trusted = level == Level::Project && trust.holds(path, text.as_bytes());
            let read = |trusted| parse::parse(&text, Origin { level, path: Some(path.to_owned()), plugin: plugin.clone() }, trusted);
            let parsed = read(trusted);
            let hooks = parsed.profile.as_ref().and_then(|profile| profile.hooks.as_ref()).filter(|_| trusted);
            // The scripts of its hooks are part of what is trusted.
            match hooks.map(|hooks| HookSet::of_profile(hooks, "profile").0) {
                Some(hooks) if !hooks.has_trusted_scripts(trust, cwd) => read(false),
                Some(_) | None => parsed,
            }
        }
        Err(diagnostic) => Parsed { profile: None, diagnostics: vec![diagnostic] },
    }
}

/// The profiles that always exist (R40, R54).
pub fn built_in() -> Vec<Parsed> {
    [include_str!("builtin/general-purpose.md"), include_str!("builtin/explore.md"), include_str!("builtin/plan.md")]
        .into_iter()
        .map(|text| parse::parse(text, Origin { level: Level::BuiltIn, path: None, plugin: None }, true))
        .collect()
}

impl Catalog {
    /// Later ones win: places come in order of precedence, files of a place in order of their paths.
    fn add(&mut self, parsed: Parsed, place: Option<&Place>) {
        let Some(profile) = parsed.profile else {
            self.diagnostics.extend(parsed.diagnostics);
            return;
        };
        let definition = Definition { profile: Arc::new(profile), diagnostics: parsed.diagnostics };
        let profile = &definition.profile;
        if profile.origin.level == Level::User && self.state.disabled.contains(&profile.name) {
            let reason = "disabled in agents-state.json".to_owned();
            self.replaced.push(Replaced { definition, reason, disabled: true });
            return;
        }
        let name = profile.name.clone();
        let Some(earlier) = self.definitions.insert(name.clone(), definition) else { return };
        let by = &self.definitions[&name].profile;
        let in_one_place = place.is_some_and(|place| same_place(&earlier.profile, place));
        if in_one_place {
            let (first, last) = (described(&earlier.profile), described(by));
            let reason = format!("two files of one folder define `{name}`: {first} and {last}; the last in order of paths holds");
            let path = by.origin.path.clone();
            let line = by.line_of(super::profile::Field::Name);
            let note = Diagnostic::new(Code::DuplicateName, Severity::Warning, reason, "rename or remove one of the two");
            self.diagnostics.push(note.at(path.as_deref(), line));
        }
        let reason = match earlier.profile.origin.level == by.origin.level {
            true => format!("replaced by {} of the same level", described(by)),
            false => format!("replaced by {}: {} wins over {}", described(by), by.origin.level, earlier.profile.origin.level),
        };
        self.replaced.push(Replaced { definition: earlier, reason, disabled: false });
    }

    /// Canonical names, and bare names of plugin profiles that are free (R61, R62). Names that fold to one key are told.
    fn name_candidates(&mut self) {
        let mut bare: BTreeMap<&str, usize> = BTreeMap::new();
        for definition in self.definitions.values().filter(|definition| definition.profile.origin.level == Level::Plugin) {
            *bare.entry(definition.profile.bare_name()).or_default() += 1;
        }
        let mut candidates = Vec::with_capacity(self.definitions.len());
        for (name, definition) in &self.definitions {
            let profile = &definition.profile;
            let short = profile.bare_name();
            let is_taken = [GENERAL_PURPOSE, EXPLORE, PLAN].contains(&short) || self.definitions.contains_key(short);
            let is_alias = profile.origin.level == Level::Plugin && bare.get(short) == Some(&1) && !is_taken;
            candidates.push(Candidate { name: name.clone(), aliases: if is_alias { vec![short.to_owned()] } else { Vec::new() } });
        }
        let mut folded: BTreeMap<String, Vec<&str>> = BTreeMap::new();
        for name in self.definitions.keys() {
            folded.entry(matching::fold(name)).or_default().push(name);
        }
        for names in folded.values().filter(|names| names.len() > 1) {
            let reason = format!("the names {} differ only in case, blanks, dashes or underscores", names.join(", "));
            let last = names.last().and_then(|name| self.definitions.get(*name));
            let path = last.and_then(|definition| definition.profile.origin.path.clone());
            let line = last.and_then(|definition| definition.profile.line_of(super::profile::Field::Name));
            let note = Diagnostic::new(Code::AmbiguousName, Severity::Warning, reason, "call each by its exact name, or rename one");
            self.diagnostics.push(note.at(path.as_deref(), line));
        }
        self.candidates = candidates;
    }
}

fn same_place(profile: &Profile, place: &Place) -> bool {
    profile.origin.level == place.level && profile.origin.path.as_ref().is_some_and(|path| path.starts_with(&place.folder))
}

fn described(profile: &Profile) -> String {
    match &profile.origin.path {
        Some(path) => path.display().to_string(),
        None => format!("the {} profile", profile.origin.level),
    }
}

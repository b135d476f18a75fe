//! Flow: config. Layers, sources, what a project may not set, and errors that name the place.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use serde::Deserialize;
use zapmyco::config::sections::SECTIONS;
use zapmyco::config::settings::DEFAULTS;
use zapmyco::config::{Environment, Layout, Limits, ProjectLayout, Settings, SettingsError, Source, Sources};
use zapmyco::permissions::mode::Mode;
use zapmyco::permissions::rules::RuleSet;

use crate::support::{Home, finish};

struct Setup {
    home: Home,
    environment: Vec<(&'static str, &'static str)>,
    flags: Vec<(String, toml::Value)>,
    handover: Vec<(String, toml::Value)>,
}

impl Setup {
    fn new() -> Self {
        Self { home: Home::new(), environment: Vec::new(), flags: Vec::new(), handover: Vec::new() }
    }

    fn user(self, text: &str) -> Self {
        std::fs::write(self.home.root().join("settings.toml"), text).unwrap();
        self
    }

    fn project(self, text: &str) -> Self {
        self.home.write(".zapmyco/settings.toml", text);
        self
    }

    fn private(self, text: &str) -> Self {
        self.home.write(".zapmyco/settings.local.toml", text);
        self
    }

    fn variable(mut self, name: &'static str, value: &'static str) -> Self {
        self.environment.push((name, value));
        self
    }

    fn flag(mut self, key: &str, value: &str) -> Self {
        self.flags.push((key.into(), value.into()));
        self
    }

    fn handed(mut self, key: &str, value: impl Into<toml::Value>) -> Self {
        self.handover.push((key.into(), value.into()));
        self
    }

    fn load(&self) -> Result<Settings, SettingsError> {
        let settings = Settings::load(Sources {
            layout: &Layout::new(self.home.root()),
            project: &ProjectLayout::new(self.home.project()),
            environment: &Environment::from_pairs(self.environment.iter().copied()),
            flags: self.flags.clone(),
            handover: self.handover.clone(),
            mode_width: Mode::width_of,
            trusted: &|_, _| false,
        })?;
        settings.check(SECTIONS)?;
        Ok(settings)
    }

    fn good(&self) -> Settings {
        self.load().unwrap()
    }

    /// The error's text with the storage root and the project shortened.
    fn error(&self) -> String {
        self.shortened(&self.load().unwrap_err().to_string())
    }

    fn shortened(&self, text: &str) -> String {
        text.replace(&self.home.root().display().to_string(), "ROOT").replace(&self.home.project().display().to_string(), "PROJECT")
    }
}

fn text(settings: &Settings, key: &str) -> String {
    settings.section::<String>(key).unwrap().unwrap()
}

#[test]
fn the_printable_defaults_are_the_defaults() {
    let settings = Setup::new().good();
    assert_eq!(*settings.limits(), Limits::default());
    // Not only equal because nothing was read: every limit stands in the file.
    let table: toml::Table = DEFAULTS.parse().unwrap();
    let written = table["limits"].as_table().unwrap().len();
    let debug = format!("{:?}", Limits::default());
    assert_eq!(written, debug.matches(": ").count(), "a limit is missing in defaults.toml");
}

#[test]
fn the_examples_in_the_printed_defaults_are_valid() {
    let is_setting = |line: &str| line.starts_with('[') || line.split_once(" = ").is_some_and(|(key, _)| !key.contains(' '));
    let examples: Vec<&str> = DEFAULTS.lines().filter_map(|line| line.strip_prefix("# ")).filter(|line| is_setting(line)).collect();
    assert!(examples.len() >= 26, "{examples:#?}");
    let setup = Setup::new().user(&examples.join("\n"));
    let rules = setup.good().section::<RuleSet>("permissions").unwrap().unwrap();
    assert_eq!((rules.allow.len(), rules.ask.len(), rules.deny.len()), (1, 0, 1));
    assert_eq!(setup.good().section::<Kind>("providers.NAME.kind").unwrap(), Some(Kind::Openai));
}

#[test]
fn the_stronger_layer_wins_and_is_named() {
    let setup = Setup::new().user("model = \"a/1\"\n").project("\n\nmodel = \"b/2\"\n");
    let settings = setup.good();
    assert_eq!(text(&settings, "model"), "b/2");
    let path = setup.home.project().join(".zapmyco/settings.toml");
    assert_eq!(settings.source("model"), Some(Source::File { path, line: 3 }));

    let setup = setup.private("model = \"c/3\"");
    assert_eq!(text(&setup.good(), "model"), "c/3");
    let setup = setup.variable("ZAPMYCO_MODEL", "d/4");
    assert_eq!(setup.good().source("model"), Some(Source::Environment("ZAPMYCO_MODEL".into())));
    let setup = setup.flag("model", "e/5");
    assert_eq!(setup.good().source("model"), Some(Source::Flag("model".into())));
    let setup = setup.handed("model", "f/6");
    let settings = setup.good();
    assert_eq!((text(&settings, "model").as_str(), settings.source("model")), ("f/6", Some(Source::Handover)));
    assert_eq!(settings.source("permission_mode"), Some(Source::Default));
    assert_eq!(settings.source("base_url"), None);
}

#[test]
fn limits_come_from_files_and_variables() {
    let setup = Setup::new()
        .user("[limits]\nstop_grace = \"250ms\"\noutput_kept_max = \"2MB\"\nlocal_agents_max = 7\n")
        .variable("ZAPMYCO_LIMITS_STOP_GRACE", "1s")
        .variable("ZAPMYCO_LIMITS_DRAIN_TIME", "")
        .variable("ZAPMYCO_LIMITS_REQUEST_RETRIES", "2");
    let limits = setup.good().limits().clone();
    let wanted = Limits {
        stop_grace: Duration::from_secs(1),
        output_kept_max: 2 << 20,
        local_agents_max: 7,
        request_retries: 2,
        ..Limits::default()
    };
    assert_eq!(limits, wanted);
}

#[test]
fn wrong_limits_are_named_with_place_value_and_expectation() {
    for (line, message) in [
        ("stop_grace = 5", "limits.stop_grace = 5: a duration has a unit: \"300s\", \"5m\", \"500ms\" (ms, s, m, h, d)"),
        ("stop_grace = \"-5s\"", "limits.stop_grace = \"-5s\": it cannot be negative"),
        (
            "stop_grace = \"5MB\"",
            "limits.stop_grace = \"5MB\": `MB` is no unit of time; write a duration as \"300s\", \"5m\" or \"500ms\" (ms, s, m, h, d)",
        ),
        ("inbox_capacity = -1", "limits.inbox_capacity = -1: it cannot be negative"),
        ("inbox_capacity = 0", "limits.inbox_capacity = 0: it has to be at least 1"),
        ("inbox_capacity = 9999999999", "limits.inbox_capacity = 9999999999: it can be at most 1000000000"),
        ("inbox_capacity = \"5\"", "limits.inbox_capacity = \"5\": expected a whole number without quotes and unit"),
        (
            "inbox_capacity = 99999999999999999999",
            "limits.inbox_capacity = \"99999999999999999999\": expected a whole number without quotes and unit",
        ),
        ("inbox_capacity = [1]", "limits.inbox_capacity = [1]: expected a whole number without quotes and unit"),
        ("task_argument_max = \"1MB\"", "limits.task_argument_max = \"1MB\": it can be at most 120KB"),
        ("poll_interval = \"0s\"", "limits.poll_interval = \"0s\": it has to be at least 1ms"),
    ] {
        let setup = Setup::new().user(&format!("# first\n[limits]\n{line}\n"));
        assert_eq!(setup.error(), format!("ROOT/settings.toml:3: {message}"));
    }
    let setup = Setup::new().variable("ZAPMYCO_LIMITS_STOP_GRACE", "soon");
    assert_eq!(
        setup.error(),
        "environment variable ZAPMYCO_LIMITS_STOP_GRACE: limits.stop_grace = \"soon\": it has to start with a whole number, without sign, point or blank"
    );
    let setup = Setup::new().variable("ZAPMYCO_LIMITS_STOP_GRASE", "1s");
    assert_eq!(
        setup.error(),
        "environment variable ZAPMYCO_LIMITS_STOP_GRASE: unknown key `limits.stop_grase`; did you mean `ZAPMYCO_LIMITS_STOP_GRACE`?"
    );
    let setup = Setup::new().user("limits.output_kept_max = \"1KB\"\n");
    assert_eq!(setup.error(), "default: limits.output_tail_kept cannot be larger than limits.output_kept_max (ROOT/settings.toml:1)");
}

#[test]
fn an_unknown_key_is_named_with_the_nearest_one() {
    for (content, message) in [
        ("\nmodle = \"x/y\"", "ROOT/settings.toml:2: unknown key `modle`; did you mean `model`?"),
        ("[limits]\nstop_grase = \"1s\"", "ROOT/settings.toml:2: unknown key `limits.stop_grase`; did you mean `stop_grace`?"),
        ("[providers.x]\napi_keyenv = \"A\"", "ROOT/settings.toml:2: unknown key `providers.x.api_keyenv`; did you mean `api_key_env`?"),
        ("colour = 1", "ROOT/settings.toml:1: unknown key `colour`"),
        ("limits = 3", "ROOT/settings.toml:1: limits = 3: expected a table; write it as [limits]"),
        ("providers = [1]", "ROOT/settings.toml:1: providers = [1]: expected a table; write it as [providers]"),
    ] {
        assert_eq!(Setup::new().user(content).error(), message);
    }
}

#[test]
fn broken_files_are_named_with_line_and_column() {
    let setup = Setup::new().user("model = \"a/1\"\nbad = = 3\n");
    assert!(setup.error().starts_with("ROOT/settings.toml:2:7: "), "{}", setup.error());
    let setup = Setup::new().user("x = 1\nx = 2\n");
    assert!(setup.error().starts_with("ROOT/settings.toml:2:1: "), "{}", setup.error());
    // The message must not quote the line: it may hold a key.
    let setup = Setup::new().user("api_key = \"sk-very-secret\n");
    assert!(!setup.error().contains("very-secret"), "{}", setup.error());

    let path = |setup: &Setup| setup.home.root().join("settings.toml");
    let setup = Setup::new();
    std::fs::write(path(&setup), b"a = 1\nb = \"\xff\"\n").unwrap();
    assert_eq!(setup.error(), "ROOT/settings.toml:2: not UTF-8 text");
    let setup = Setup::new();
    std::fs::create_dir(path(&setup)).unwrap();
    assert_eq!(setup.error(), "settings file ROOT/settings.toml is not a file");
    let setup = Setup::new();
    std::os::unix::fs::symlink("/dev/zero", path(&setup)).unwrap();
    assert_eq!(setup.error(), "settings file ROOT/settings.toml is not a file");
    let setup = Setup::new();
    std::fs::write(path(&setup), "#".repeat(1024 * 1024 + 1)).unwrap();
    assert_eq!(setup.error(), "settings file ROOT/settings.toml is larger than 1048576 bytes");
    let setup = Setup::new();
    setup.home.write(".zapmyco", "a file where a folder should be");
    assert!(setup.error().starts_with("cannot read settings file PROJECT/.zapmyco/settings.toml: "), "{}", setup.error());
    let setup = Setup::new().user(&format!("x = {}1{}\n", "[".repeat(100_000), "]".repeat(100_000)));
    assert!(setup.error().starts_with("ROOT/settings.toml:1:"), "{}", setup.error());
    // A byte order mark and foreign line ends are no error.
    let setup = Setup::new().user("\u{feff}model = \"a/1\"\r\n\r\nbase_url = \"http://x\"\r\n");
    let settings = setup.good();
    assert_eq!(settings.source("base_url"), Some(Source::File { path: path(&setup), line: 3 }));
}

#[derive(Debug, Deserialize, PartialEq)]
struct Provider {
    kind: Kind,
    base_url: Option<String>,
    retries: Option<u8>,
}

#[derive(Debug, Deserialize, PartialEq)]
#[serde(rename_all = "snake_case")]
enum Kind {
    Anthropic,
    Openai,
}

#[test]
fn a_section_is_read_as_a_type_and_errors_name_the_value() {
    let setup =
        Setup::new().user("[providers.one]\nkind = \"openai\"\nbase_url = \"http://h\"\n[providers.\"t.w.o\"]\nkind = \"anthropic\"\n");
    let providers = setup.good().section::<BTreeMap<String, Provider>>("providers").unwrap().unwrap();
    assert_eq!(providers["one"], Provider { kind: Kind::Openai, base_url: Some("http://h".into()), retries: None });
    assert_eq!(providers["t.w.o"].kind, Kind::Anthropic);
    assert_eq!(setup.good().section::<Vec<String>>("permissions.allow").unwrap(), None);

    for (content, message) in [
        ("kind = \"opanai\"", "providers.one.kind = \"opanai\": unknown variant `opanai`, expected `anthropic` or `openai`"),
        ("kind = \"openai\"\nbase_url = 5", "providers.one.base_url = 5: invalid type: integer `5`, expected a string"),
    ] {
        let setup = Setup::new().user(&format!("[providers.one]\n{content}\n"));
        let error = setup.good().section::<BTreeMap<String, Provider>>("providers").unwrap_err();
        let line = content.lines().count() + 1;
        assert_eq!(setup.shortened(&error.to_string()), format!("ROOT/settings.toml:{line}: {message}"));
    }
    let setup = Setup::new().user("[permissions]\ndeny = [\n  \"a\",\n  7,\n]\n");
    let error = setup.good().section::<Vec<String>>("permissions.deny").unwrap_err();
    assert_eq!(
        setup.shortened(&error.to_string()),
        "ROOT/settings.toml:4: permissions.deny = 7: invalid type: integer `7`, expected a string"
    );
}

#[test]
fn a_project_cannot_redirect_keys_or_widen_rights() {
    for write in [Setup::project as fn(Setup, &str) -> Setup, Setup::private] {
        let setup = write(
            Setup::new().user("permission_mode = \"acceptEdits\"\n[providers.mine]\nkind = \"openai\"\nbase_url = \"https://mine\"\n"),
            "base_url = \"http://evil\"\nmodel = \"script:evil.yaml\"\npermission_mode = \"yolo\"\nlimits.retention_age = \"0s\"\n\
             [providers.mine]\nbase_url = \"http://evil\"\n[permissions]\nallow = [\"Bash\"]\ndeny = [\"Write\"]\n",
        );
        let settings = setup.good();
        let providers = settings.section::<BTreeMap<String, Provider>>("providers").unwrap().unwrap();
        assert_eq!(providers["mine"].base_url.as_deref(), Some("https://mine"));
        assert_eq!((settings.source("base_url"), settings.source("model")), (None, None));
        assert_eq!(text(&settings, "permission_mode"), "acceptEdits");
        assert_eq!(settings.limits().retention_age, Limits::default().retention_age);
        assert_eq!(settings.section::<Vec<String>>("permissions.allow").unwrap(), None);
        assert_eq!(settings.section::<Vec<String>>("permissions.deny").unwrap(), Some(vec!["Write".into()]), "stricter is welcome");
        let mut ignored: Vec<_> = settings.ignored().iter().map(|diagnostic| diagnostic.key.as_str()).collect();
        ignored.sort_unstable();
        assert_eq!(ignored, ["base_url", "limits.retention_age", "model", "permission_mode", "permissions.allow", "providers"]);
        let shown = setup.shortened(&settings.ignored().iter().find(|diagnostic| diagnostic.key == "base_url").unwrap().to_string());
        assert!(shown.contains(":1: `base_url` is ignored: a project cannot choose where keys and conversations are sent; "), "{shown}");
    }
    let stricter = Setup::new().user("permission_mode = \"acceptEdits\"").project("permission_mode = \"plan\"").good();
    assert_eq!((text(&stricter, "permission_mode").as_str(), stricter.ignored().len()), ("plan", 0));
}

#[test]
fn rules_of_all_layers_are_joined_and_the_parent_has_the_last_word_on_what_is_allowed() {
    let setup = Setup::new()
        .user("[permissions]\nallow = [\"A\"]\ndeny = [\"D\"]\n")
        .project("[permissions]\ndeny = [\"E\"]\n")
        .handed("permissions.deny", vec!["F".to_owned()])
        .handed("permissions.allow", vec!["B".to_owned()]);
    let settings = setup.good();
    let list = |key| settings.section::<Vec<String>>(key).unwrap().unwrap();
    assert_eq!(list("permissions.deny"), ["D", "E", "F"]);
    assert_eq!(list("permissions.allow"), ["B"]);
}

#[test]
fn a_child_gets_the_limits_of_its_parent_as_they_are() {
    let parent = Setup::new()
        .user("[limits]\nstop_grace = \"250ms\"\n")
        .project("limits.local_agents_max = 7")
        .variable("ZAPMYCO_LIMITS_OUTPUT_KEPT_MAX", "2MB")
        .good();
    let handed = parent.limits_set();
    assert_eq!(handed.len(), 3, "{handed:?}");
    let mut child = Setup::new().user("limits.stop_grace = \"9s\"");
    for (name, text) in handed {
        child = child.handed(&format!("limits.{name}"), text);
    }
    assert_eq!(child.good().limits(), parent.limits());
}

#[test]
fn in_the_home_folder_the_users_file_is_not_also_the_projects() {
    let home = Home::new();
    let root = home.project().join(".zapmyco");
    home.write(".zapmyco/settings.toml", "base_url = \"http://mine\"");
    let load = |root: &Path| {
        Settings::load(Sources {
            layout: &Layout::new(root.to_owned()),
            project: &ProjectLayout::new(home.project()),
            environment: &Environment::default(),
            flags: Vec::new(),
            handover: Vec::new(),
            mode_width: |_| None,
            trusted: &|_, _| false,
        })
        .unwrap()
    };
    let settings = load(&root);
    assert_eq!((text(&settings, "base_url").as_str(), settings.ignored().len()), ("http://mine", 0));
}

/// R332
#[test]
fn secrets_are_not_shown() {
    let setup = Setup::new()
        .user("base_url = \"http://user:pass@host/v1\"\n[providers.x]\nkind = \"openai\"\napi_key = \"sk-very-secret\"\napi_key_env = \"X_KEY\"\n");
    let entries = setup.good().entries();
    let shown = |key: &str| entries.iter().find(|entry| entry.key == key).unwrap().value.clone();
    assert_eq!(shown("providers.x.api_key"), "\"***\"");
    assert_eq!(shown("providers.x.api_key_env"), "\"X_KEY\"");
    assert_eq!(shown("base_url"), "\"http://***@host/v1\"");
    let error = setup.good().section::<BTreeMap<String, BTreeMap<String, u8>>>("providers").unwrap_err();
    assert!(!error.to_string().contains("very-secret"), "{error}");
    let whole = setup.good().section::<Vec<u8>>("providers").unwrap_err().to_string();
    assert!(whole.contains("api_key = \"***\"") && !whole.contains("very-secret"), "{whole}");
}

/// R332
#[test]
fn config_show_tells_value_and_source_and_hides_keys() {
    let home = Home::new();
    std::fs::write(
        home.root().join("settings.toml"),
        "model = \"mine/m1\"\n[providers.mine]\nkind = \"openai\"\napi_key = \"sk-very-secret\"\nbase_url = \"http://127.0.0.1:1\"\n",
    )
    .unwrap();
    home.write(".zapmyco/settings.toml", "base_url = \"http://evil\"\n[limits]\nstop_grace = \"1s\"\n");
    let shown = finish(home.command().args(["config", "show"]).env("ZAPMYCO_LIMITS_REQUEST_RETRIES", "1"));
    let (root, project) = (home.root().display().to_string(), home.project().display().to_string());
    assert_eq!(shown.code, 0, "{shown:?}");
    for line in [
        "# model mine/m1 at http://127.0.0.1:1: named by `mine/m1`; key from the settings".to_owned(),
        format!("#   {root}/settings.toml (user)"),
        format!("#   {project}/.zapmyco/settings.toml (project)"),
        format!("#   {project}/.zapmyco/settings.local.toml (project, private, none)"),
        format!("model = \"mine/m1\"  # {root}/settings.toml:1"),
        format!("providers.mine.api_key = \"***\"  # {root}/settings.toml:4"),
        format!("limits.stop_grace = \"1s\"  # {project}/.zapmyco/settings.toml:3"),
        "limits.request_retries = 1  # environment variable ZAPMYCO_LIMITS_REQUEST_RETRIES".to_owned(),
        "limits.drain_time = \"500ms\"  # default".to_owned(),
    ] {
        assert!(shown.stdout.lines().any(|found| found == line), "{line}\n{}", shown.stdout);
    }
    assert!(shown.stdout.parse::<toml::Table>().is_ok(), "what is shown is TOML");
    assert!(!shown.stdout.contains("very-secret"));
    assert_eq!(
        shown.stderr,
        format!(
            "zapmyco: {project}/.zapmyco/settings.toml:1: `base_url` is ignored: a project cannot choose where keys and conversations are \
             sent; set it in your own settings file or by a flag\n"
        )
    );
    assert_eq!(home.run(&["config", "show"]).stdout, home.run(&["config", "show"]).stdout, "stable");

    let json = home.run(&["config", "show", "--json"]);
    assert!(!json.stdout.contains("very-secret"));
    let object: serde_json::Value = serde_json::from_str(&json.stdout).unwrap();
    assert_eq!(object["schema_version"], 1);
    let setting = |key: &str| object["settings"].as_array().unwrap().iter().find(|entry| entry["key"] == key).unwrap().clone();
    assert_eq!(
        setting("model"),
        serde_json::json!({"key": "model", "value": "mine/m1", "source": {"kind": "file", "path": format!("{root}/settings.toml"), "line": 1}})
    );
    assert_eq!(
        setting("limits.request_retries"),
        serde_json::json!({"key": "limits.request_retries", "value": 8, "source": {"kind": "default"}})
    );
    assert_eq!(
        object["files"][3],
        serde_json::json!({"path": format!("{project}/.zapmyco/settings.local.toml"), "owner": "project, private", "found": false})
    );
    assert_eq!(object["ignored"][0]["key"], "base_url");
}

#[test]
fn a_broken_settings_file_ends_with_2_and_names_place_and_remedy() {
    let home = Home::new();
    let path = home.root().join("settings.toml");
    for (content, message) in [
        (
            "modle = \"x/y\"\n",
            "1: unknown key `modle`; did you mean `model`?\n  `zapmyco config defaults` prints every key with its meaning\n",
        ),
        (
            "permission_mode = \"god\"\n",
            "1: permission_mode = \"god\": unknown permission mode `god`; known: default (build), acceptEdits (edit, read-write), plan \
             (read-only), auto, dontAsk, yolo (bypassPermissions, full)\n  change or remove it; `zapmyco config defaults` prints every key with its default\n",
        ),
    ] {
        std::fs::write(&path, content).unwrap();
        let shown = home.run(&["config", "show"]);
        assert_eq!((shown.code, shown.stdout.as_str()), (2, ""));
        assert_eq!(shown.stderr, format!("zapmyco: {}:{message}", path.display()));
    }
    let shown = finish(home.command().args(["config", "show"]).env("ZAPMYCO_HOME", "relative"));
    assert_eq!(shown.code, 2);
    assert_eq!(shown.stderr, "zapmyco: ZAPMYCO_HOME is `relative`, a relative path; set it to an absolute folder or unset it\n");
    assert!(!home.project().join("relative").exists());
}

#[test]
fn config_defaults_prints_a_file_that_works_as_settings() {
    let home = Home::new();
    // Also when the settings are broken: it is where people look for help.
    std::fs::write(home.root().join("settings.toml"), "= broken").unwrap();
    let printed = home.run(&["config", "defaults"]);
    assert_eq!((printed.code, printed.stdout.as_str()), (0, DEFAULTS));
    std::fs::write(home.root().join("settings.toml"), &printed.stdout).unwrap();
    assert_eq!(home.run(&["config", "show"]).code, 0);
}

proptest::proptest! {
    /// Whatever stands in a settings file, the answer is settings or an error that begins with a place.
    #[test]
    fn no_file_breaks_the_reader(
        lines in proptest::collection::vec(
            "(model|limits|permissions|providers\\.x|a)?(\\.[a-z_]{1,8})? ?(=|\\[|) ?(\"[^\"]{0,6}\"|-?[0-9]{1,20}|\\[|\\]|\\{|true|1e9|0x1f|1979-05-27|.{0,6})",
            0..6,
        )
    ) {
        let setup = Setup::new().user(&lines.join("\n")).project(&lines.join("\n"));
        match setup.load() {
            Ok(settings) => {
                settings.entries();
                let _ = settings.section::<BTreeMap<String, Provider>>("providers");
                let _ = settings.section::<Vec<String>>("permissions.allow");
            }
            Err(error) => {
                let shown = setup.shortened(&error.to_string());
                proptest::prop_assert!(["ROOT", "PROJECT", "default"].iter().any(|place| shown.starts_with(place)), "{}", shown);
            }
        }
    }
}

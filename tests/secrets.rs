//! Flow: keys of providers. Where they may come from, who gets them, and that nothing that is stored or shown holds one.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use serde_json::json;

use crate::support::provider::{Answer, Provider};
use crate::support::{Finished, Home, finish};

const KEY: &str = "sk-ant-test-5f0c9c1e2b7a4d8896";
const OTHER_KEY: &str = "other+key/with=odd?characters-77";

fn files_below(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() { files.extend(files_below(&path)) } else { files.push(path) }
    }
    files
}

/// Every file of the root but the user's own settings, and whatever else is named, that holds one of the keys.
fn leaks(home: &Home, texts: &[(&str, &str)], extra: &[PathBuf]) -> Vec<String> {
    let holds = |bytes: &[u8]| [KEY, OTHER_KEY].iter().any(|key| bytes.windows(key.len()).any(|window| window == key.as_bytes()));
    let files = files_below(&home.root()).into_iter().filter(|path| path.file_name().unwrap() != "settings.toml");
    let in_files = files.chain(extra.iter().cloned()).filter(|path| holds(&std::fs::read(path).unwrap()));
    let in_texts = texts.iter().filter(|(_, text)| holds(text.as_bytes())).map(|(name, _)| (*name).to_owned());
    in_files.map(|path| path.display().to_string()).chain(in_texts).collect()
}

fn run(home: &Home, provider: &Provider, arguments: &[&str]) -> Finished {
    let mut command = home.command();
    provider.configure(&mut command);
    finish(command.env("ANTHROPIC_API_KEY", KEY).arg("run").args(arguments))
}

/// R332: a run whose tools print everything there is, whose children do so too, and which is recorded, leaves no key
/// behind: not in database, events, job folders, recording, output or messages to the model.
#[test]
fn what_tools_print_holds_no_key() {
    let home = Home::new();
    let settings = format!("[providers.other]\nkind = 'openai'\nbase_url = 'http://127.0.0.1:1'\napi_key = '{OTHER_KEY}'\n");
    std::fs::write(home.root().join("settings.toml"), settings).unwrap();
    // The keeper between shell and agent has the agent's environment.
    let spill = "env; cat \"$ZAPMYCO_HOME/settings.toml\"; tr '\\0' '\\n' < /proc/$PPID/environ; echo spilled";
    let slow = format!("{spill}; head -c 300000 /dev/zero | tr '\\0' x; {spill}");
    let provider = Provider::with(move |request| {
        let is_child = request.task().contains("child's task");
        match (request.turn(), is_child) {
            (0, true) => Answer::call("k1", "Bash", json!({"command": spill})),
            (_, true) => Answer::text(format!("child saw {}", request.tool_results().len())),
            (0, false) => Answer::call("c1", "Bash", json!({"command": spill}))
                .and_call("c2", "Bash", json!({"command": slow}))
                .and_call("c3", "Bash", json!({"command": spill, "run_in_background": true}))
                .and_call("c4", "Read", json!({"file_path": home_settings(request.system().as_str())}))
                .and_call("c5", "Agent", json!({"description": "look", "prompt": "child's task", "subagent_type": "general-purpose"}))
                .and_call("c6", "subagent", json!({"action": "spawn", "task": "child's task"})),
            _ => Answer::text("done"),
        }
    });
    let recording = home.project().join("recorded.jsonl");
    let arguments = ["go", "--permission-mode", "yolo", "--output-format", "stream-json", "--record", recording.to_str().unwrap()];
    let finished = run(&home, &provider, &arguments);
    assert_eq!(finished.code, 0, "{}", finished.stderr);
    let sent: String = provider.requests().iter().map(|request| String::from_utf8_lossy(&request.body).into_owned()).collect();
    let masked = format!("ANTHROPIC_API_KEY={}", "*".repeat(KEY.len()));
    assert!(sent.contains("spilled") && sent.contains(&masked) && sent.contains("api_key = '[key of other hidden]'"), "{sent}");
    let texts = [("stdout", finished.stdout.as_str()), ("stderr", &finished.stderr), ("sent", &sent)];
    assert_eq!(leaks(&home, &texts, std::slice::from_ref(&recording)), Vec::<String>::new());
    // The key was really there to be found.
    assert!(provider.requests()[0].header("x-api-key") == Some(KEY));
    for path in files_below(&home.root()).into_iter().filter(|path| path.file_name().unwrap() != "settings.toml").chain([recording]) {
        let mode = path.metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o077, 0, "{} has mode {mode:o}", path.display());
    }
}

/// The path the prompt's environment block does not tell; tests know it from the working directory beside it.
fn home_settings(system: &str) -> String {
    let cwd = system.lines().find_map(|line| line.split_once("/project").map(|(before, _)| before)).unwrap();
    let start = cwd.find('/').unwrap();
    format!("{}/root/settings.toml", &cwd[start..])
}

/// fault J2: the provider's refusal repeats the key; nobody else does.
#[test]
fn an_error_that_repeats_the_key_is_told_without_it() {
    for format in ["text", "json", "stream-json"] {
        let home = Home::new();
        let provider = Provider::always(Answer::error(401, &format!("invalid x-api-key: {KEY}")));
        let finished = run(&home, &provider, &["hello", "--output-format", format]);
        assert_eq!(finished.code, 6, "{}", finished.stderr);
        let told = format!("{}{}", finished.stdout, finished.stderr);
        assert!(told.contains("invalid x-api-key: "), "{told}");
        assert_eq!(leaks(&home, &[("told", &told)], &[]), Vec::<String>::new());
    }
}

/// A key that a person types into a prompt reaches the model, since it was meant for it, but no record.
#[test]
fn a_key_in_a_prompt_is_not_stored() {
    let home = Home::new();
    let provider = Provider::always(Answer::text("I will not repeat it"));
    let finished = run(&home, &provider, &[&format!("my key is {KEY}")]);
    assert_eq!(finished.code, 0, "{}", finished.stderr);
    assert!(provider.requests()[0].user_text().contains(KEY));
    assert_eq!(leaks(&home, &[], &[]), Vec::<String>::new());
}

/// R332: shells get the environment without keys, unless the user's own settings name one.
#[test]
fn shells_get_no_keys_unless_asked_for() {
    for (settings, expected) in [("", "0 0"), ("[shell]\nkeep_keys = ['OPENAI_API_KEY']\n", "0 22")] {
        let home = Home::new();
        std::fs::write(home.root().join("settings.toml"), settings).unwrap();
        let command = "printf '%s %s' ${#ANTHROPIC_API_KEY} ${#OPENAI_API_KEY}";
        let provider = Provider::with(move |request| match request.turn() {
            0 => Answer::call("c1", "Bash", json!({"command": command})),
            _ => Answer::text("done"),
        });
        let mut run = home.command();
        provider.configure(&mut run);
        let finished = finish(run.env("OPENAI_API_KEY", "openai-key-of-22-bytes").args(["run", "go", "--permission-mode", "yolo"]));
        assert_eq!(finished.code, 0, "{}", finished.stderr);
        let (_, result) = provider.requests()[1].tool_results().remove(0);
        assert!(result.starts_with(expected), "{settings}: {result}");
    }
    let home = Home::new();
    home.write(".zapmyco/settings.toml", "[shell]\nkeep_keys = ['ANTHROPIC_API_KEY']\n");
    let shown = home.run(&["config", "show"]);
    assert!(shown.stderr.contains("`shell.keep_keys` is ignored"), "{}", shown.stderr);
}

/// Forgets what a test has stored, whatever becomes of the test.
struct Stored<'h>(&'h Home);

impl Drop for Stored<'_> {
    fn drop(&mut self) {
        self.0.run(&["config", "key", "unset", "anthropic"]);
    }
}

fn set_key(home: &Home, provider: &str, key: &str) -> Finished {
    let file = home.write("key.txt", key);
    finish(home.command().args(["config", "key", "set", provider]).stdin(std::fs::File::open(file).unwrap()))
}

/// The system's key store: set from stdin, listed by name only, used when nothing else gives a key, forgotten again.
#[test]
fn a_stored_key_is_used_and_never_shown() {
    let home = Home::new();
    let _forgotten = Stored(&home);
    let set = set_key(&home, "anthropic", &format!("{KEY}\n"));
    if set.code != 0 {
        // No key rings here (some containers forbid them): that is said, and the other ways are named.
        assert!(set.stderr.contains("the kernel's key rings cannot be used here"), "{}", set.stderr);
        return;
    }
    assert!(set.stderr.contains("gone after a restart of the machine"), "{}", set.stderr);
    std::fs::remove_file(home.project().join("key.txt")).unwrap();
    let listed = home.run(&["config", "key", "list"]);
    assert_eq!((listed.code, listed.stdout.as_str()), (0, "anthropic\n"));
    let provider = Provider::always(Answer::text("hi"));
    let base_url = provider.base_url();
    let with = |arguments: &[&str], key: Option<&str>| {
        let mut command = home.command();
        command.env("ANTHROPIC_BASE_URL", &base_url).envs(key.map(|key| ("ANTHROPIC_API_KEY", key)));
        finish(command.args(arguments))
    };
    let finished = with(&["run", "hello"], None);
    assert_eq!(finished.code, 0, "{}", finished.stderr);
    with(&["run", "hello"], Some("from-the-environment"));
    let keys: Vec<String> = provider.requests().iter().map(|request| request.header("x-api-key").unwrap().to_owned()).collect();
    assert_eq!(keys, [KEY, "from-the-environment"]);
    let shown = with(&["config", "show"], None);
    assert!(shown.stdout.contains("key from the system's key store"), "{}", shown.stdout);
    let unset = home.run(&["config", "key", "unset", "anthropic"]);
    assert_eq!(unset.code, 0, "{}", unset.stderr);
    assert_eq!(home.run(&["config", "key", "list"]).stdout, "");
    let again = home.run(&["config", "key", "unset", "anthropic"]);
    assert!(again.code == 1 && again.stderr.contains("no key of `anthropic` is stored"), "{}", again.stderr);
    let texts = [&set, &listed, &finished, &shown].map(|finished| format!("{}{}", finished.stdout, finished.stderr));
    assert_eq!(leaks(&home, &[("output", &texts.concat())], &[]), Vec::<String>::new());
}

#[test]
fn what_is_no_key_is_not_stored() {
    let home = Home::new();
    for (provider, key, expected) in [
        ("anthropik", KEY, "no provider is called `anthropik`"),
        ("anthropic", "", "that is no key"),
        ("anthropic", "a\nb", "that is no key"),
    ] {
        let finished = set_key(&home, provider, key);
        assert!(finished.code == 2 && finished.stderr.contains(expected), "{provider}: {}", finished.stderr);
    }
}

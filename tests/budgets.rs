//! Flow: budgets and prices, through the built binary against a real HTTP server. A budget belongs to a run and all its
//! children; at its bound nothing more is asked of a model and what is there is kept.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::support::delegating::nothing_left;
use crate::support::provider::{Answer, Gate, Provider, RecordedRequest};
use crate::support::wait::until_true;
use crate::support::{Finished, Home, finish};

fn command(provider: &Provider, home: &Home, arguments: &[&str]) -> Command {
    let mut command = home.command();
    provider.configure(&mut command);
    command.arg("run").args(arguments).args(["--output-format", "json"]);
    command
}

fn run(provider: &Provider, home: &Home, arguments: &[&str]) -> (Finished, Value) {
    let finished = finish(&mut command(provider, home, arguments));
    let result = serde_json::from_str(&finished.stdout).unwrap_or_else(|error| panic!("{error}: {finished:?}"));
    (finished, result)
}

fn is_parent(request: &RecordedRequest) -> bool {
    request.task().starts_with("PARENT")
}

fn agent(prompt: &str) -> Value {
    json!({"description": "look", "prompt": prompt})
}

fn folders(home: &Home) -> Vec<PathBuf> {
    let Ok(sessions) = std::fs::read_dir(home.root().join("cli/agents")) else { return Vec::new() };
    sessions.flatten().flat_map(|session| std::fs::read_dir(session.path()).unwrap().flatten()).map(|entry| entry.path()).collect()
}

fn metadata(folder: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(folder.join("metadata.json")).unwrap()).unwrap()
}

/// fault D8, R173: the sum over the run and all its agents; no request starts once it is over, each agent ends with what
/// it has, and tokens read from the cache count.
#[test]
fn a_shared_budget_stops_running_agents_and_keeps_what_they_have() {
    let home = Home::new();
    let gate = Gate::new();
    let held = gate.clone();
    let provider = Provider::with(move |request| {
        if is_parent(request) {
            let calls =
                (1..4).fold(Answer::text("three"), |answer, n| answer.and_call(&format!("a{n}"), "Agent", agent(&format!("CHILD {n}"))));
            return calls.with_usage(900, 100).with_cache(14_000, 0);
        }
        let task = request.task();
        // A request of an agent is counted before it starts a call; so the answer to the third makes the sum reach the bound.
        let answer = match task.as_str() {
            "CHILD 3" => Answer::call("c", "Read", json!({"file_path": "none"})).when(&held),
            _ => Answer::call("c", "Bash", json!({"command": format!("touch '{task}'; sleep 600")})),
        };
        answer.and_text(format!("found by {task}")).with_usage(900, 100).with_cache(9_000, 0)
    });
    let mut command = command(&provider, &home, &["PARENT delegate", "--max-budget-tokens", "45000", "--permission-mode", "yolo"]);
    command.env("ZAPMYCO_LIMITS_STOP_GRACE", "300ms");
    let finished = std::thread::scope(|scope| {
        let run = scope.spawn(|| finish(&mut command));
        until_true("two agents are in a call", || {
            run.is_finished() || ["CHILD 1", "CHILD 2"].iter().all(|task| home.project().join(task).exists())
        });
        gate.open();
        run.join().unwrap()
    });
    let result: Value = serde_json::from_str(&finished.stdout).unwrap_or_else(|error| panic!("{error}: {finished:?}"));
    assert_eq!(finished.code, 5, "{} {}", finished.stdout, finished.stderr);
    assert_eq!(provider.request_count(), 4, "one of the parent, one of each agent, none after the sum was over");
    assert_eq!((&result["subtype"], &result["end_cause"]), (&json!("error_max_budget_usd"), &json!("budget")));
    assert_eq!(result["usage"]["cache_read_input_tokens"], 41_000);
    let folders = folders(&home);
    assert_eq!(folders.len(), 3);
    for folder in folders {
        let stored = metadata(&folder);
        assert_eq!((&stored["status"], &stored["partial"]), (&json!("completed"), &json!("budget")), "{stored}");
        let text = std::fs::read_to_string(folder.join("output.txt")).unwrap();
        assert!(text.contains(&format!("found by {}", stored["prompt"].as_str().unwrap())), "{text}");
        assert_eq!(stored["usage"]["cache_read_input_tokens"], 9_000);
    }
    assert!(finished.stderr.contains("the budget of this run is used up: 45000 of 45000 tokens"), "{}", finished.stderr);
}

/// fault D8: also an agent that is inside a long call when others use the budget up.
#[test]
fn a_used_up_budget_stops_an_agent_in_a_long_call() {
    let home = Home::new();
    let provider = Provider::with(|request| match (is_parent(request), request.turn()) {
        (true, 0) => Answer::call("a", "Agent", json!({"description": "look", "prompt": "CHILD", "run_in_background": true})),
        (true, _) => Answer::text("I wait").with_usage(50_000, 10),
        (false, _) => Answer::call("s", "Bash", json!({"command": "sleep 600"})).and_text("before the sleep"),
    });
    let mut command = command(&provider, &home, &["PARENT", "--max-budget-tokens", "25000", "--permission-mode", "yolo"]);
    let finished = finish(command.env("ZAPMYCO_LIMITS_STOP_GRACE", "300ms"));
    assert_eq!(finished.code, 5, "{} {}", finished.stdout, finished.stderr);
    let stored = metadata(&folders(&home)[0]);
    assert_eq!((&stored["status"], &stored["partial"]), (&json!("completed"), &json!("budget")), "{stored}");
    assert!(std::fs::read_to_string(folders(&home)[0].join("output.txt")).unwrap().contains("before the sleep"));
    assert!(nothing_left(&home));
}

/// fault D8, R319: a process child counts in the same place as its parent, tokens and money.
#[test]
fn a_process_child_shares_the_budget() {
    let home = Home::new();
    let provider = Provider::with(|request| match (is_parent(request), request.turn()) {
        (true, 0) => Answer::call("s", "subagent", json!({"action": "spawn", "task": "CHILD"})),
        (true, _) => {
            let (_, spawned) = request.tool_results()[0].clone();
            let at = spawned.find("sa_").unwrap();
            let id: String = spawned[at..].chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect();
            Answer::call("p", "subagent", json!({"action": "poll", "subagent_ids": [id], "wait_secs": 30}))
        }
        (false, _) => Answer::call("r", "Read", json!({"file_path": "none"})).and_text("the child found it").with_usage(40_000, 10),
    });
    let (finished, result) = run(&provider, &home, &["PARENT", "--max-budget-tokens", "30000", "--model", "anthropic/claude-sonnet-5"]);
    assert_eq!((finished.code, &result["end_cause"]), (5, &json!("budget")), "{} {}", finished.stdout, finished.stderr);
    let own = &result["usage"];
    let dollars = |tokens: &Value, rate: f64| tokens.as_f64().unwrap() * rate / 1e6;
    let of_parent = dollars(&own["input_tokens"], 2.0) + dollars(&own["output_tokens"], 10.0);
    let cost = result["total_cost_usd"].as_f64().unwrap();
    // The child's 40,000 and 10 tokens are in it.
    assert!((cost - of_parent - 0.0801).abs() < 1e-9, "{result}");
    let of_child = provider.requests().iter().filter(|request| !is_parent(request)).count();
    assert_eq!(of_child, 1, "its second request was not sent");
    let jobs = home.run(&["jobs", "list", "--json"]);
    let jobs: Value = serde_json::from_str(&jobs.stdout).unwrap();
    assert_eq!((&jobs["jobs"][0]["status"], &jobs["jobs"][0]["exit_code"]), (&json!("completed"), &json!(5)), "{jobs}");
    let output = std::fs::read_to_string(jobs["jobs"][0]["stdout"]["path"].as_str().unwrap()).unwrap();
    assert!(output.contains("the child found it"), "{output}");
}

/// R319, R173: money is counted at list prices, of the run and its agents together.
#[test]
fn money_is_counted_and_bounded() {
    let home = Home::new();
    let provider = Provider::with(|request| match (is_parent(request), request.turn()) {
        (true, 0) => Answer::call("a", "Agent", agent("CHILD")).with_usage(1_000, 100),
        (true, _) => Answer::text("done").with_usage(2_000, 50).with_cache(10_000, 1_000),
        (false, _) => Answer::text("found").with_usage(500, 500),
    });
    let (finished, result) = run(&provider, &home, &["PARENT", "--model", "anthropic/claude-sonnet-5"]);
    assert_eq!(finished.code, 0, "{}", finished.stderr);
    // Dollars per million: input 2, output 10, cache read 0.2, cache write 2.5.
    // 3,500 of input, 650 of output, 10,000 read, 1,000 written.
    assert_eq!(result["total_cost_usd"], json!(0.018), "{result}");
    let bounded = ["PARENT", "--model", "anthropic/claude-sonnet-5", "--max-budget-usd", "0.002"];
    let before = provider.request_count();
    let (finished, result) = run(&provider, &home, &bounded);
    assert_eq!((finished.code, &result["subtype"]), (5, &json!("error_max_budget_usd")), "{}", finished.stderr);
    // The parent's request costs 0.003, which is over already.
    assert_eq!(provider.request_count() - before, 1);
    assert_eq!(result["total_cost_usd"], json!(0.003));
}

/// R319: a price that is not known is not guessed; a budget of money is refused before anything is asked.
#[test]
fn an_unknown_price_is_no_number_and_holds_no_budget() {
    let home = Home::new();
    let provider = Provider::always(Answer::text("hi").with_usage(1_000_000, 0));
    let (finished, result) = run(&provider, &home, &["hi", "--model", "anthropic/claude-nobody-knows"]);
    assert_eq!((finished.code, &result["total_cost_usd"]), (0, &Value::Null), "{}", finished.stderr);
    let bounded = ["hi", "--model", "anthropic/claude-nobody-knows", "--max-budget-usd", "1"];
    let (refused, _) = run(&provider, &home, &bounded);
    assert_eq!(refused.code, 2);
    assert!(refused.stderr.contains("the price of anthropic/claude-nobody-knows is not known"), "{}", refused.stderr);
    assert!(refused.stderr.contains("[prices.\"anthropic/claude-nobody-knows\"]"), "{}", refused.stderr);
    assert_eq!(provider.request_count(), 1);
    std::fs::create_dir_all(home.root()).unwrap();
    std::fs::write(home.root().join("settings.toml"), "[prices.\"anthropic/claude-nobody-knows\"]\ninput = 0.5\noutput = 1\n").unwrap();
    let (finished, result) = run(&provider, &home, &bounded);
    assert_eq!((finished.code, &result["total_cost_usd"]), (0, &json!(0.5)), "{}", finished.stderr);
}

/// R173: the number of requests and the time of the whole run.
#[test]
fn requests_and_time_of_the_whole_run_are_bounded() {
    let home = Home::new();
    let provider = Provider::with(|request| match (is_parent(request), request.turn()) {
        (true, 0) => Answer::call("a", "Agent", agent("CHILD")),
        (true, _) => Answer::text("done"),
        (false, _) => Answer::call("r", "Read", json!({"file_path": "none"})).and_text("so far"),
    });
    let (finished, result) = run(&provider, &home, &["PARENT", "--max-budget-turns", "3"]);
    assert_eq!((finished.code, &result["end_cause"]), (5, &json!("budget")), "{}", finished.stderr);
    assert_eq!(provider.request_count(), 3);
    assert_eq!(metadata(&folders(&home)[0])["partial"], "budget");

    let home = Home::new();
    let provider = Provider::always(Answer::text("the beginning of an answer").silence_after(4));
    let (finished, result) = run(&provider, &home, &["PARENT", "--max-budget-time", "700ms"]);
    assert_eq!((finished.code, &result["end_cause"]), (5, &json!("budget")), "{}", finished.stderr);
    assert!(finished.stderr.contains("the budget of this run is used up: its time of 700ms"), "{}", finished.stderr);
}

/// R173: an agent's own bounds end it like the turn limit, with a closing report; the run goes on.
#[test]
fn a_profile_bounds_tokens_and_money_of_its_agent() {
    for bound in ["maxTokens: 1500", "maxBudgetUsd: 0.003"] {
        let home = Home::new();
        home.write(".zapmyco/agents/short.md", &format!("---\nname: short\ndescription: short\n{bound}\n---\nBe short.\n"));
        let provider = Provider::with(|request| match (is_parent(request), request.turn()) {
            (true, 0) => Answer::call("a", "Agent", json!({"description": "d", "prompt": "CHILD", "subagent_type": "short"})),
            (true, _) => Answer::text("done"),
            (false, 2) => Answer::text("my report").with_usage(100, 1),
            (false, _) => Answer::call("r", "Read", json!({"file_path": "none"})).with_usage(1_000, 1),
        });
        let (finished, _) = run(&provider, &home, &["PARENT", "--model", "anthropic/claude-sonnet-5"]);
        assert_eq!(finished.code, 0, "{bound}: {}", finished.stderr);
        let result = provider.requests().last().unwrap().tool_results()[0].1.clone();
        assert!(result.starts_with("[Partial result: the budget was used up (budget)]\n\nmy report\n"), "{bound}: {result}");
        assert_eq!(metadata(&folders(&home)[0])["partial"], "budget");
    }
}

/// R173: what a project's files say about money is not obeyed.
#[test]
fn a_project_cannot_set_budget_or_prices() {
    let home = Home::new();
    home.write(".zapmyco/settings.toml", "[budget]\ntokens = 1\n[prices.\"anthropic/x\"]\ninput = 0\noutput = 0\n");
    let provider = Provider::always(Answer::text("hi").with_usage(10, 10));
    let (finished, result) = run(&provider, &home, &["hi", "--model", "anthropic/x"]);
    assert_eq!((finished.code, &result["total_cost_usd"]), (0, &Value::Null));
    for key in ["`budget` is ignored", "`prices` is ignored"] {
        assert!(finished.stderr.contains(key), "{}", finished.stderr);
    }
}

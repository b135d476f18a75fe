//! Flow: stored conversations from a shell, `zapmyco sessions ...`.

use std::io::Read;
use std::process::Stdio;

use serde_json::{Value, json};
use zapmyco::ids::SessionId;
use zapmyco::store::{MessageRow, SessionRow, Store};

use crate::support::provider::{Answer, Gate, Provider};
use crate::support::{Finished, Home, wait};

fn json_of(finished: &Finished) -> Value {
    serde_json::from_str(&finished.stdout).unwrap_or_else(|error| panic!("{error}: {finished:?}"))
}

fn run(home: &Home, provider: &Provider, arguments: &[&str]) -> Finished {
    let mut command = home.command();
    provider.configure(&mut command);
    crate::support::finish(command.arg("run").args(arguments))
}

fn newest(home: &Home) -> String {
    json_of(&home.run(&["sessions", "list", "--json"]))["sessions"][0]["id"].as_str().unwrap().to_owned()
}

/// R388: what was said can be listed, read and taken away; an id of a session is shown where it is needed.
#[test]
fn a_run_can_be_listed_shown_and_exported() {
    let home = Home::new();
    home.write("notes.txt", &"line of the file\n".repeat(40));
    let none = home.run(&["sessions", "list"]);
    assert_eq!((none.code, none.stdout.as_str()), (0, ""), "{none:?}");
    assert_eq!(json_of(&home.run(&["sessions", "list", "--json"]))["sessions"], json!([]));
    assert!(!home.root().join("zapmyco.db").exists(), "a command that only reads makes no database");
    let provider = Provider::answers([
        Answer::call("c1", "Read", json!({ "file_path": "notes.txt" })),
        Answer::text("It has forty lines.\n\u{1b}[31mred"),
    ]);
    assert_eq!(run(&home, &provider, &["count the lines\nof notes.txt"]).code, 0);
    let listed = json_of(&home.run(&["sessions", "list", "--json", "--here"]));
    let session = &listed["sessions"][0];
    assert_eq!(session["title"], "count the lines");
    assert_eq!(session["cwd"], home.project().canonicalize().unwrap().to_str().unwrap());
    assert!(session["model"].as_str().unwrap().starts_with("anthropic/"), "{session}");
    assert_eq!((&session["children"], &session["parent"], &listed["next_page"]), (&json!(0), &Value::Null, &Value::Null));
    let id = session["id"].as_str().unwrap();
    let text = home.run(&["sessions", "list"]).stdout;
    assert!(text.contains(id) && text.contains("count the lines"), "{text}");

    let shown = home.run(&["sessions", "show", id]);
    assert_eq!(shown.code, 0, "{shown:?}");
    for part in [
        &format!("session    {id}\n"),
        "--- user ",
        "count the lines\nof notes.txt\n",
        "-> Read {\"file_path\":\"notes.txt\"}\n",
        "It has forty lines.\nred\n",
    ] {
        assert!(shown.stdout.contains(part), "{part:?} in {}", shown.stdout);
    }
    assert!(!shown.stdout.contains('\u{1b}'), "nothing stored moves a terminal");
    assert!(shown.stdout.contains("more characters; --full shows all") && shown.stdout.matches("line of the file").count() < 40);
    assert!(home.run(&["sessions", "show", id, "--full"]).stdout.matches("line of the file").count() >= 40);
    let whole = json_of(&home.run(&["sessions", "show", id, "--json"]));
    let history = whole["history"].as_array().unwrap();
    assert_eq!(history.len() as u64, whole["messages"].as_u64().unwrap());
    assert_eq!(history.last().unwrap()["source"], "assistant");

    let markdown = home.run(&["sessions", "export", id]).stdout;
    assert!(
        markdown.starts_with("# count the lines\n") && markdown.contains("call `Read` (`c1`)") && markdown.contains("result of `c1`"),
        "{markdown}"
    );
    let lines: Vec<Value> =
        home.run(&["sessions", "export", id, "--json"]).stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((&lines[0]["type"], &lines[0]["id"], lines.len()), (&json!("session"), &json!(id), history.len() + 1));
    assert_eq!((&lines[1]["type"], &lines[1]["session"]), (&json!("message"), &json!(id)));
}

fn row(id: &SessionId, parent: Option<&SessionId>, home: &Home, title: &str) -> SessionRow {
    let now = zapmyco::clock::now();
    SessionRow {
        id: id.clone(),
        parent: parent.cloned(),
        task_type: if parent.is_some() { "subagent_child" } else { "main" }.into(),
        cwd: home.project(),
        model: "m/x".into(),
        mode: "default".into(),
        title: title.into(),
        state: json!({}),
        created_at: now,
        updated_at: now,
    }
}

fn said(seq: i64, text: &str) -> MessageRow {
    let message = json!({ "version": 1, "role": "user", "blocks": [{ "type": "text", "text": text }] });
    MessageRow { seq, source: "user".into(), message, at: zapmyco::clock::now() }
}

/// R5: children stand under their parent, are found by their agent's id, and are part of an export.
#[tokio::test(flavor = "multi_thread")]
async fn children_belong_to_their_parent_and_lists_have_pages() {
    let home = Home::new();
    let store = Store::open(&home.root().join("zapmyco.db")).unwrap();
    let mut mains = Vec::new();
    for number in 0..5 {
        let id = SessionId::new_main();
        store.create_session(row(&id, None, &home, &format!("main {number}"))).await.unwrap();
        mains.push(id);
    }
    let job = zapmyco::ids::JobId::new_local_agent();
    let child = SessionId::of_child(&job);
    store.create_session(row(&child, Some(&mains[0]), &home, "the child")).await.unwrap();
    store.append_messages(&child, vec![said(0, "hello child")]).await.unwrap();
    store.append_messages(&mains[0], vec![said(0, "hello main")]).await.unwrap();
    store.flush().await.unwrap();

    let page =
        |page: &str, more: &[&str]| json_of(&home.run(&[&["sessions", "list", "--json", "--limit", "2", "--page", page], more].concat()));
    let titles = |value: &Value| {
        value["sessions"].as_array().unwrap().iter().map(|row| row["title"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let first = page("1", &[]);
    assert_eq!(titles(&first), ["main 0", "main 4"], "the one used last first, without children");
    assert_eq!(
        (&first["next_page"], &first["sessions"][0]["children"], &first["sessions"][0]["messages"]),
        (&json!(2), &json!(1), &json!(1))
    );
    assert_eq!(titles(&page("3", &[])), ["main 1"]);
    assert_eq!(page("3", &[])["next_page"], Value::Null);
    assert_eq!(titles(&page("2", &["--all"])).len(), 2);
    assert_eq!(titles(&json_of(&home.run(&["sessions", "list", "--json", "--children-of", mains[0].as_str()]))), ["the child"]);

    let shown = home.run(&["sessions", "show", job.as_str()]).stdout;
    assert!(shown.contains("hello child") && shown.contains(&format!("child of   {}\n", mains[0])), "{shown}");
    assert!(home.run(&["sessions", "show", mains[0].as_str()]).stdout.contains(&format!("child      {child}  the child\n")));
    let exported = home.run(&["sessions", "export", mains[0].as_str()]).stdout;
    assert!(exported.contains("# main 0\n") && exported.contains("## the child\n") && exported.contains("hello child"), "{exported}");
    let lines = home.run(&["sessions", "export", mains[0].as_str(), "--json"]).stdout;
    let sessions: Vec<Value> =
        lines.lines().map(|line| serde_json::from_str(line).unwrap()).filter(|line: &Value| line["type"] == "session").collect();
    assert_eq!(sessions.iter().map(|line| line["id"].as_str().unwrap()).collect::<Vec<_>>(), [mains[0].as_str(), child.as_str()]);
}

/// R388: wrong ids, and a reader that has seen enough.
#[tokio::test(flavor = "multi_thread")]
async fn unknown_ids_and_closed_pipes() {
    let home = Home::new();
    let unknown = ["sess_0197a0f0-0000-7000-8000-000000000000", "nobody", "../../x", "", "agent_x"];
    for id in unknown {
        for command in ["show", "export"] {
            let refused = home.run(&["sessions", command, id]);
            assert_eq!((refused.code, refused.stdout.as_str()), (11, ""), "{refused:?}");
        }
    }
    let store = Store::open(&home.root().join("zapmyco.db")).unwrap();
    let id = SessionId::new_main();
    store.create_session(row(&id, None, &home, "long")).await.unwrap();
    store.append_messages(&id, (0..200).map(|seq| said(seq, &"x".repeat(5000))).collect()).await.unwrap();
    store.flush().await.unwrap();
    for id in unknown {
        assert_eq!(home.run(&["sessions", "show", id]).code, 11);
    }
    assert_eq!(home.run(&["sessions", "list", "--limit", "0"]).code, 2);
    for arguments in [["sessions", "show", id.as_str()], ["sessions", "export", id.as_str()]] {
        let mut child = home.command().args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut head = [0; 10];
        child.stdout.take().unwrap().read_exact(&mut head).unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!((output.status.code(), output.stderr.len()), (Some(141), 0), "{output:?}");
    }
}

/// A session that another process is in the middle of is read, not waited for.
#[test]
fn an_open_session_is_read_while_it_runs() {
    let home = Home::new();
    let gate = Gate::new();
    let provider = Provider::answers([Answer::text("late").when(&gate)]);
    let mut command = home.command();
    provider.configure(&mut command);
    let mut running = command.args(["run", "wait for me"]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    wait::until_true("the request", || !provider.requests().is_empty());
    let id = newest(&home);
    let shown = home.run(&["sessions", "show", &id]);
    assert!(shown.code == 0 && shown.stdout.contains("wait for me"), "{shown:?}");
    assert_eq!(home.run(&["sessions", "export", &id, "--json"]).code, 0);
    gate.open();
    assert!(running.wait().unwrap().success());
    assert!(home.run(&["sessions", "show", &id]).stdout.contains("\nlate\n"));
}

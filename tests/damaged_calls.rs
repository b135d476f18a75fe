//! Flow: calls of a model whose arguments are no JSON object. The model is told what is wrong and writes them again; the
//! history stays one that both providers accept; nothing is executed by guessing.

use serde_json::{Value, json};

use crate::support::provider::{Answer, Provider, RecordedRequest};
use crate::support::{Finished, Home, finish};

#[derive(Clone, Copy, Debug, PartialEq)]
enum Wire {
    Anthropic,
    Openai,
}

fn run_over(wire: Wire, provider: &Provider, home: &Home, arguments: &[&str]) -> Finished {
    let mut command = home.command();
    match wire {
        Wire::Anthropic => provider.configure(&mut command),
        Wire::Openai => provider.configure_openai(&mut command),
    };
    finish(command.args(["run", "--permission-mode", "yolo"]).args(arguments))
}

/// The inputs of all calls in the request's history, as the provider would read them.
fn inputs(wire: Wire, request: &RecordedRequest) -> Vec<Value> {
    let messages = request.json["messages"].as_array().unwrap();
    match wire {
        Wire::Anthropic => {
            let blocks = messages.iter().filter_map(|message| message["content"].as_array()).flatten();
            blocks.filter(|block| block["type"] == "tool_use").map(|block| block["input"].clone()).collect()
        }
        Wire::Openai => {
            let calls = messages.iter().filter_map(|message| message["tool_calls"].as_array()).flatten();
            calls.map(|call| serde_json::from_str(call["function"]["arguments"].as_str().unwrap()).unwrap()).collect()
        }
    }
}

const BROKEN: [(&str, &str); 6] = [
    ("{\"file_path\": \"out.txt\", \"content\": ", "it breaks off too early"),
    ("{\"file_path\": \"out.txt\", \"content\": \"two\nlines\"}", "control character"),
    ("{'file_path': 'out.txt', 'content': 'x'}", "key must be a string at line 1 column 2"),
    ("{\"file_path\": \"out.txt\", \"content\": \"x\"}}", "trailing characters"),
    ("[\"out.txt\", \"x\"]", "must be a JSON object, got an array"),
    ("out.txt", "is not valid JSON: expected value at line 1 column 1"),
];

#[test]
fn a_call_that_does_not_parse_goes_back_to_the_model() {
    for wire in [Wire::Anthropic, Wire::Openai] {
        for (arguments, says) in BROKEN {
            let home = Home::new();
            let provider = Provider::with(move |request| match request.turn() {
                0 => Answer::text("writing").and_raw_call("c1", "Write", arguments).and_call("c2", "Glob", json!({"pattern": "*"})),
                1 => Answer::call("c3", "Write", json!({"file_path": "out.txt", "content": "whole"})),
                _ => Answer::text("written"),
            });
            let finished = run_over(wire, &provider, &home, &["write it"]);
            assert_eq!((finished.code, finished.stdout.as_str()), (0, "written\n"), "{wire:?} {arguments}: {}", finished.stderr);
            assert_eq!(std::fs::read_to_string(home.project().join("out.txt")).unwrap(), "whole");
            let requests = provider.requests();
            let second = &requests[1];
            let results = second.tool_results();
            assert_eq!(results.iter().map(|(id, _)| id.as_str()).collect::<Vec<_>>(), ["c1", "c2"], "the sibling ran");
            assert!(results[0].1.contains(says), "{wire:?} {arguments}: {}", results[0].1);
            assert!(results[0].1.contains("The call was not run"), "{}", results[0].1);
            assert_eq!(inputs(wire, second)[0], json!({"input_that_is_not_an_object": arguments}), "the model sees what it wrote");
            assert!(inputs(wire, &requests[2]).iter().all(Value::is_object));
        }
    }
}

/// What a resumed session sends is as valid as what the first process sent.
#[test]
fn the_history_with_a_broken_call_can_be_resumed() {
    for wire in [Wire::Anthropic, Wire::Openai] {
        let home = Home::new();
        let provider = Provider::with(|request| match request.turn() {
            0 => Answer::new().and_raw_call("c1", "Bash", "{\"command\": \"touch never"),
            _ => Answer::text("sorry"),
        });
        assert_eq!(run_over(wire, &provider, &home, &["go"]).code, 0);
        let again = run_over(wire, &provider, &home, &["--continue", "and now?"]);
        assert_eq!((again.code, again.stdout.as_str()), (0, "sorry\n"), "{}", again.stderr);
        assert_eq!(
            inputs(wire, provider.requests().last().unwrap()),
            [json!({"input_that_is_not_an_object": "{\"command\": \"touch never"})]
        );
        assert!(!home.project().join("never").exists());
    }
}

#[test]
fn a_model_that_never_learns_ends_at_the_turn_limit() {
    let home = Home::new();
    let provider = Provider::with(|request| match request.turn() {
        turn if turn < 3 => Answer::new().and_raw_call(&format!("c{turn}"), "Bash", "{\"command\": "),
        _ => Answer::text("I could not"),
    });
    let finished = run_over(Wire::Anthropic, &provider, &home, &["--max-turns", "3", "go"]);
    assert_eq!((finished.code, finished.stdout.as_str()), (5, "I could not\n"), "{}", finished.stderr);
    assert_eq!(provider.request_count(), 4, "three requests and the closing one");
}

/// fault C3: a stream that breaks inside the arguments is a broken stream, also where the piece alone is valid JSON.
#[test]
fn a_stream_cut_inside_arguments_is_never_a_call() {
    for wire in [Wire::Anthropic, Wire::Openai] {
        let whole = Answer::text("soon").and_call("c1", "Bash", json!({"command": "touch made"}));
        for cut in 1..40 {
            let home = Home::new();
            home.write(".zapmyco/settings.toml", "[limits]\nrequest_retries = 0\n");
            let answer = whole.clone().split(1).cut_after(cut);
            let provider = Provider::with(move |request| if request.turn() == 0 { answer.clone() } else { Answer::text("done") });
            let finished = run_over(wire, &provider, &home, &["go"]);
            let made = home.project().join("made").exists();
            assert!(matches!((finished.code, made), (7, false) | (0, true)), "{wire:?} cut {cut}: {} {made}", finished.code);
            if finished.code == 0 {
                assert!(cut > 5, "{wire:?}: complete after {cut} events");
                break;
            }
            assert_eq!(provider.request_count(), 1, "{wire:?} cut {cut}");
        }
    }
}

#[test]
fn a_call_cut_by_the_token_limit_is_not_run_and_the_answer_is_partial() {
    for (wire, word) in [(Wire::Anthropic, "max_tokens"), (Wire::Openai, "length")] {
        let home = Home::new();
        let provider = Provider::always(Answer::new().and_raw_call("c1", "Bash", "{\"command\": \"touch made").with_stop(word));
        let finished = run_over(wire, &provider, &home, &["go"]);
        assert_eq!(finished.code, 5, "{wire:?}: {}", finished.stderr);
        assert!(finished.stderr.contains("cut by the model's limit for one answer"), "{}", finished.stderr);
        assert!(!home.project().join("made").exists());
    }
}

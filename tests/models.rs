//! Models over real HTTP on loopback.

use crate::support::provider::{Answer, Provider};
use serde_json::json;
use std::io::{Read, Write};

/// The server itself: both wire formats, keep-alive, records.
#[test]
fn the_test_server_answers_and_records() {
    let provider = Provider::answers([Answer::text("hello"), Answer::call("c1", "Read", json!({"path": "x"})).whole()]);
    let mut stream = std::net::TcpStream::connect(provider.address()).unwrap();
    for (path, body) in [("/v1/messages", r#"{"stream":true}"#), ("/v1/chat/completions", r#"{"stream":true}"#)] {
        write!(stream, "POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n{body}", body.len()).unwrap();
    }
    let mut answer = Vec::new();
    let mut buffer = [0; 4096];
    while !String::from_utf8_lossy(&answer).contains("\"total_tokens\"") {
        let read = stream.read(&mut buffer).unwrap();
        assert!(read > 0, "{}", String::from_utf8_lossy(&answer));
        answer.extend_from_slice(&buffer[..read]);
    }
    let answer = String::from_utf8_lossy(&answer).into_owned();
    assert!(answer.contains("message_stop") && answer.contains("tool_calls"), "{answer}");
    assert_eq!(provider.requests().iter().map(|r| r.path.clone()).collect::<Vec<_>>(), ["/v1/messages", "/v1/chat/completions"]);
}

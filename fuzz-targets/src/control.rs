//! Lines of the control socket: requests, replies and what is in these.

use control::message::{About, Reply, Request, Then, read_reply, read_request};
use profile::live::{Snapshot, View};
use serde_json::Value;

/// Runs the target on one input of the fuzzer.
pub fn test_one_input(line: &[u8]) {
    let (id, request) = read_request(line);
    match request {
        Ok(request) => {
            let mut again = serde_json::to_value(&request).expect("a request can be written");
            if let (Some(object), Some(id)) = (again.as_object_mut(), &id) {
                object.insert("id".to_owned(), id.clone());
            }
            let again = serde_json::to_vec(&again).expect("a request can be written");
            let (same_id, same) = read_request(&again);
            let same = same.expect("a request that was written");
            assert_eq!(same_id.is_some(), id.is_some());
            match request {
                // JSON rounds numbers with a fraction.
                Request::Rate { .. } | Request::Tables { .. } | Request::Watch { .. } => {}
                request => assert_eq!(same, request, "a request says the same when it is sent on"),
            }
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    let Ok(reply) = read_reply::<serde_json::Value>(line) else { return };
    if let Some(ok) = &reply.ok {
        let _ = serde_json::from_value::<About>(ok.clone());
        let _ = serde_json::from_value::<Snapshot>(ok.clone());
    }
    let again = serde_json::to_vec(&reply).expect("a reply can be written");
    let again = read_reply::<serde_json::Value>(&again).expect("a reply that was written");
    assert_eq!(again.id.is_some(), reply.id.is_some());
}

/// Returns inputs to start from.
pub fn seeds() -> Vec<Vec<u8>> {
    let requests = [
        Request::Status,
        Request::Tables { view: View::default() },
        Request::Watch { view: View::default(), every_ms: 250 },
        Request::Start { when: Some("process:gzip".to_owned()) },
        Request::Stop { when: Some("console:^a(b|c)+$".to_owned()), then: Some(Then::End) },
        Request::Stop { when: Some("time:1.5s".to_owned()), then: Some(Then::Continue) },
        Request::Rate { hz: 50.0 },
        Request::Mark { text: "here".to_owned() },
        Request::Write,
        Request::End,
    ];
    let about = About {
        version: "0.1.0".to_owned(),
        pid: 1,
        image: "a".to_owned(),
        profile: "b".into(),
        preparing: None,
        time_s: 1.5,
        sampling: true,
        rate_hz: 99.0,
        samples: 7,
        lost: 0,
        kernel: Some("6.1".to_owned()),
        standing: None,
    };
    let replies = [
        Reply { id: Some(Value::from(7)), ok: serde_json::to_value(&about).ok(), ..Reply::default() },
        Reply { snapshot: Some(Box::default()), ..Reply::default() },
        Reply { ok: serde_json::to_value(Snapshot::default()).ok(), ..Reply::default() },
        Reply { error: Some("the run is busy: try again".to_owned()), ..Reply::default() },
    ];
    let requests = requests.iter().map(|request| serde_json::to_vec(request).expect("a request"));
    let replies = replies.iter().map(|reply| serde_json::to_vec(reply).expect("a reply"));
    requests.chain(replies).chain([br#"{"id":{"a":[1]},"do":"status"}"#.to_vec()]).collect()
}

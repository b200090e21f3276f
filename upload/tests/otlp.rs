//! Receivers of OpenTelemetry profiles that answer in each way that the protocol has.

use std::io::{Read, Write};
use std::time::{Duration, Instant, SystemTime};

use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use opentelemetry_proto::tonic::collector::profiles::v1development::{
    ExportProfilesPartialSuccess, ExportProfilesServiceRequest, ExportProfilesServiceResponse,
};
use opentelemetry_proto::tonic::profiles::v1development::{ProfilesDictionary, ResourceProfiles};
use prost::Message;
use testkit::{HttpAnswer, HttpReceiver};
use upload::{Accepted, OtlpSink, SinkAddress, SinkError};

const PROTOBUF: &str = "Content-Type: application/x-protobuf\r\n";

fn request() -> ExportProfilesServiceRequest {
    ExportProfilesServiceRequest {
        resource_profiles: vec![ResourceProfiles {
            schema_url: "a".to_owned(),
            ..ResourceProfiles::default()
        }],
        dictionary: Some(ProfilesDictionary {
            string_table: vec![String::new(), "text".repeat(1_000)],
            ..ProfilesDictionary::default()
        }),
    }
}

fn zipped() -> Vec<u8> {
    let mut zipped = GzEncoder::new(Vec::new(), Compression::default());
    zipped.write_all(&request().encode_to_vec()).unwrap();
    zipped.finish().unwrap()
}

fn export(address: &str) -> Result<Accepted, SinkError> {
    let Ok(SinkAddress::Otlp(address)) = address.parse() else { panic!("{address}") };
    OtlpSink::new(&address).unwrap().export("the profile", &zipped())
}

/// Sends to a server of HTTP that answers so; returns the result and the requests that it got.
fn post(answers: Vec<HttpAnswer>) -> (Result<Accepted, SinkError>, HttpReceiver) {
    let receiver = HttpReceiver::new(move |number, _| answers[number].clone());
    (export(&format!("otlp+http://{}/base", receiver.address)), receiver)
}

fn response(rejected_profiles: i64, error_message: &str) -> ExportProfilesServiceResponse {
    let error_message = error_message.to_owned();
    let partial_success = Some(ExportProfilesPartialSuccess { rejected_profiles, error_message });
    ExportProfilesServiceResponse { partial_success }
}

fn words(error: &SinkError) -> String {
    let text = error.to_string();
    assert!(!text.contains(['\n', '<']) && text.len() < 400, "{text}");
    text
}

#[test]
fn a_request_is_posted_once_and_has_all_bytes() {
    let (sent, receiver) = post(vec![HttpAnswer::Status(200, PROTOBUF, Vec::new())]);
    assert_eq!(sent.unwrap(), Accepted::default());
    let requests = receiver.requests();
    let [got] = requests.as_slice() else { panic!("{requests:?}") };
    assert_eq!(got.target, "POST /base/v1development/profiles");
    assert_eq!(got.headers["content-type"], "application/x-protobuf");
    assert_eq!(got.headers["content-encoding"], "gzip");
    assert!(got.headers["user-agent"].starts_with("vprof/"));
    let mut plain = Vec::new();
    GzDecoder::new(got.body.as_slice()).read_to_end(&mut plain).unwrap();
    assert_eq!(ExportProfilesServiceRequest::decode(plain.as_slice()).unwrap(), request());
}

#[test]
fn rejected_profiles_and_warnings_are_returned() {
    let body = response(2, "too many\nsamples").encode_to_vec();
    let (sent, _) = post(vec![HttpAnswer::Status(200, PROTOBUF, body)]);
    assert_eq!(sent.unwrap(), Accepted { rejected: 2, words: "too many".to_owned() });
    let (sent, _) = post(vec![HttpAnswer::Status(200, "", b"<html>hello".to_vec())]);
    assert!(words(&sent.unwrap_err()).contains("is not one of OTLP"));
}

#[test]
fn a_busy_receiver_is_asked_again_after_its_time() {
    for status in [429, 502, 503, 504] {
        let begin = Instant::now();
        let (sent, receiver) = post(vec![
            HttpAnswer::Status(status, "Retry-After: 1\r\n", Vec::new()),
            HttpAnswer::Status(200, PROTOBUF, Vec::new()),
        ]);
        sent.unwrap();
        assert_eq!(receiver.requests().len(), 2);
        assert!(begin.elapsed() >= Duration::from_secs(1), "{status}");
    }
    // A time that is longer than a process waits is for the caller.
    let (sent, receiver) = post(vec![HttpAnswer::Status(503, "Retry-After: 3600\r\n", Vec::new())]);
    let error = sent.unwrap_err();
    assert!(words(&error).contains("status 503"), "{error}");
    assert!(matches!(error, SinkError::Failed { after: Some(after), .. } if after.as_secs() == 3_600));
    assert_eq!(receiver.requests().len(), 1);
    // The other form of the header is a date.
    let date = httpdate::fmt_http_date(SystemTime::now() + Duration::from_secs(3_600));
    let header = format!("Retry-After: {date}\r\n").leak();
    let (sent, _) = post(vec![HttpAnswer::Status(429, header, Vec::new())]);
    let after = |error| matches!(error, SinkError::Failed { after: Some(after), .. } if (3_500..=3_600).contains(&after.as_secs()));
    assert!(after(sent.unwrap_err()));
}

#[test]
fn a_refusal_is_not_repeated() {
    // `google.rpc.Status` with code 3 and these words.
    let status = b"\x08\x03\x12\x0dno such field".to_vec();
    let refused = [(400, PROTOBUF, status), (413, "", b"too large<br>".to_vec())];
    for ((status, headers, body), said) in refused.into_iter().zip(["no such field", "too large"]) {
        let (sent, receiver) = post(vec![HttpAnswer::Status(status, headers, body)]);
        let error = sent.unwrap_err();
        assert!(matches!(error, SinkError::Refused { .. }), "{error}");
        assert!(words(&error).contains(said) && words(&error).contains("refuses the profile"), "{error}");
        assert_eq!(receiver.requests().len(), 1);
    }
    let later = [(401, "OTEL_EXPORTER_OTLP_HEADERS"), (404, "check the address"), (500, "status 500")];
    for (status, said) in later {
        let (sent, receiver) = post(vec![HttpAnswer::Status(status, "", b"<html>".to_vec())]);
        let error = sent.unwrap_err();
        assert!(matches!(error, SinkError::Failed { .. }) && words(&error).contains(said), "{error}");
        assert_eq!(receiver.requests().len(), 1);
    }
    // Credentials go nowhere else.
    let (sent, receiver) = post(vec![HttpAnswer::Status(307, "Location: /other\r\n", Vec::new())]);
    assert!(words(&sent.unwrap_err()).contains("status 307"));
    assert_eq!(receiver.requests().len(), 1);
}

//! The API of a home's control plane, spoken directly: what the command line would never send, and streams as they come.

use crate::home::Home;
use serde_json::Value;
use wire::client::{Client, ClientError, Method, Problem};

pub struct Api {
    client: Client,
    runtime: tokio::runtime::Runtime,
}

impl Api {
    /// Of the home's control plane, as its owner.
    pub fn of(home: &Home) -> Api {
        let url = home.url();
        let token = std::fs::read_to_string(home.data().join("token")).unwrap();
        Api::at(&url, Some(token.trim()))
    }

    pub fn at(url: &str, token: Option<&str>) -> Api {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        Api { client: Client::new(url, token).unwrap(), runtime }
    }

    pub fn get(&self, path: &str) -> Value {
        self.try_get(path).unwrap_or_else(|error| panic!("{path}: {error}"))
    }

    pub fn try_get(&self, path: &str) -> Result<Value, ClientError> {
        self.runtime.block_on(self.client.get(&format!("/api/v1{path}")))
    }

    #[allow(dead_code, reason = "for those who answer questions")]
    pub fn try_post(&self, path: &str, body: &Value) -> Result<Value, ClientError> {
        self.runtime.block_on(self.client.post(&format!("/api/v1{path}"), body))
    }

    /// All of them at once; the answers in the same order.
    pub fn post_all(&self, path: &str, bodies: Vec<Value>) -> Vec<Value> {
        let path = format!("/api/v1{path}");
        let posts = bodies.iter().map(|body| self.client.post(&path, body));
        let answers: Vec<Result<Value, ClientError>> = self.runtime.block_on(futures_util::future::join_all(posts));
        answers.into_iter().map(|answer| answer.unwrap_or_else(|error| panic!("{path}: {error}"))).collect()
    }

    /// Sends bytes as they are; what is refused is told.
    pub fn post_bytes(&self, path: &str, body: Vec<u8>) -> Problem {
        let request = self.client.request(Method::POST, &format!("/api/v1{path}"));
        let sent = self.runtime.block_on(request.header("content-type", "application/json").bytes(body).send());
        match sent {
            Err(ClientError::Problem(problem)) => *problem,
            other => panic!("{path} was not refused: {other:?}"),
        }
    }

    /// What the control plane has counted, by name and labels.
    pub fn metrics(&self) -> std::collections::BTreeMap<String, u64> {
        let text = self.runtime.block_on(async {
            let answer = self.client.request(Method::GET, "/metrics").send().await.unwrap();
            String::from_utf8(answer.bytes().await.unwrap().to_vec()).unwrap()
        });
        let samples = text.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.rsplit_once(' '));
        samples.map(|(name, count)| (name.to_owned(), count.parse().unwrap())).collect()
    }

    /// The first bytes of a run's log, as soon as they come.
    pub fn first_bytes(&self, run: &str) -> Vec<u8> {
        self.runtime.block_on(async {
            let mut stream = self.client.events(&format!("/api/v1/runs/{run}/logs"), None).await.unwrap();
            let event = stream.next().await.unwrap().expect("a log has an end");
            let frame: Value = serde_json::from_str(&event.data).unwrap();
            serde_json::from_value::<wire::Base64>(frame["data"].clone()).unwrap().0
        })
    }

    /// The data of every event of a stream, to its end.
    pub fn events(&self, path: &str) -> Vec<(String, Value)> {
        self.runtime.block_on(async {
            let mut stream = self.client.events(&format!("/api/v1{path}"), None).await.unwrap();
            let mut heard = Vec::new();
            while let Some(event) = stream.next().await.unwrap() {
                heard.push((event.event, serde_json::from_str(&event.data).unwrap()));
            }
            heard
        })
    }
}

/// What the frames among these events say, in their order.
pub fn text_of(events: &[(String, Value)]) -> String {
    let frames = events.iter().filter(|(kind, _)| kind == "log");
    let bytes = frames.flat_map(|(_, frame)| serde_json::from_value::<wire::Base64>(frame["data"].clone()).unwrap().0);
    String::from_utf8(bytes.collect()).unwrap()
}

//! Restate's server and a Rust service of it, on this machine and in a folder of their own: what our steps are compared with.

use super::super::bare::cpu_seconds;
use super::super::plane::Home;
use super::ENDS_WITHIN;
use crate::complaint::{Complaint, Done};
use serde_json::{Value, json};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use wire::client::{Client, Method};

const STARTS_WITHIN: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Both processes end with the home they work in.
pub struct Restate {
    server: Child,
    service: Child,
    ingress: Client,
    _home: Home,
}

impl Restate {
    /// `folder` has the programs `restate-server` and `restate-service`. The service is called with its port, and its handlers are
    /// `Bench/wf` (`{steps}`) and `Bench/http` (`{steps, url}`).
    pub async fn start(folder: &Path) -> Done<Restate> {
        let home = Home::new()?;
        let [ingress, admin, node, service] = [free_port()?, free_port()?, free_port()?, free_port()?];
        let at = |port: u16| format!("127.0.0.1:{port}");
        let mut command = program(folder, "restate-server", &home)?;
        command.arg("--base-dir").arg(home.path().join("data")).args(["--node-name", "bench"]);
        command.env("RESTATE_INGRESS__BIND_ADDRESS", at(ingress)).env("RESTATE_ADMIN__BIND_ADDRESS", at(admin));
        command.env("RESTATE_BIND_ADDRESS", at(node)).env("RESTATE_ADVERTISED_ADDRESS", format!("http://{}", at(node)));
        command.env("RESTATE_LOG_FILTER", "warn").env("DO_NOT_TRACK", "1");
        let server = started(command)?;
        let mut command = program(folder, "restate-service", &home)?;
        command.arg(service.to_string());
        let service_process = started(command)?;
        let ingress = Client::new(&format!("http://{}", at(ingress)), None)?;
        let restate = Restate { server, service: service_process, ingress, _home: home };
        let admin = Client::new(&format!("http://{}", at(admin)), None)?;
        restate.register(&admin, &format!("http://{}", at(service))).await?;
        Ok(restate)
    }

    /// Once everything listens, the server knows the service's handlers.
    async fn register(&self, admin: &Client, service: &str) -> Done<()> {
        let began = Instant::now();
        loop {
            let request = admin.request(Method::POST, "/deployments").json(&json!({ "uri": service }));
            let told = request.within(ENDS_WITHIN).send().await;
            let ready = match &told {
                Ok(_) => self.call("wf", &json!({ "steps": 1 })).await.map_err(|error| error.to_string()),
                Err(error) => Err(error.to_string()),
            };
            match ready {
                Ok(()) => return Ok(()),
                Err(why) if began.elapsed() > STARTS_WITHIN => {
                    return Err(Complaint::refused(format!("Restate did not start: {why}")));
                }
                Err(_) => tokio::time::sleep(LOOK_EVERY).await,
            }
        }
    }

    /// One run, from its submission to its output.
    pub async fn call(&self, handler: &str, input: &Value) -> Done<()> {
        let request = self.ingress.request(Method::POST, &format!("/Bench/{handler}")).json(input);
        request.within(ENDS_WITHIN).send().await?.bytes().await?;
        Ok(())
    }

    /// Of the server and the service: the service is part of what a step costs there, as the program's requests are here.
    pub fn cpu_seconds(&self) -> f64 {
        cpu_seconds(self.server.id() as i32) + cpu_seconds(self.service.id() as i32)
    }
}

impl Drop for Restate {
    fn drop(&mut self) {
        for process in [&mut self.server, &mut self.service] {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

fn program(folder: &Path, name: &str, home: &Home) -> Done<Command> {
    let path = folder.join(name);
    if !path.is_file() {
        return Err(Complaint::usage(format!("{} is not there", path.display()))
            .fix("--restate names a folder with restate-server and restate-service: docs/performance.md"));
    }
    let mut command = Command::new(path);
    command.current_dir(home.path()).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    Ok(command)
}

fn started(mut command: Command) -> Done<Child> {
    let spawned = command.spawn();
    spawned.map_err(|error| Complaint::usage(format!("{command:?} could not be started: {error}")))
}

fn free_port() -> Done<u16> {
    let failed = |error: std::io::Error| Complaint::usage(format!("no free port: {error}"));
    let listener = std::net::TcpListener::bind("127.0.0.1:0").map_err(failed)?;
    Ok(listener.local_addr().map_err(failed)?.port())
}

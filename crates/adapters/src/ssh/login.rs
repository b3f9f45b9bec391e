//! Whether a runner outlives the login that starts it. Where logind ends the processes of users who log out, it is started as a scope of
//! the user's own manager, which then has to linger. Changes nothing else on a host.

use model::{Trouble, TroubleKind};
use nix::unistd::{User, geteuid};
use std::process::Stdio;
use std::time::Duration;
use tokio::process::Command;

/// A system bus that does not answer within this is not there.
const ANSWERED_WITHIN: Duration = Duration::from_secs(5);

/// The words that start a runner so that it outlives this login; none where every process does.
pub async fn outlives() -> Result<Vec<String>, Trouble> {
    if logind_says("KillUserProcesses").await.as_deref() != Some("b true") {
        return Ok(Vec::new());
    }
    let user = User::from_uid(geteuid()).ok().flatten().map_or_else(String::new, |user| user.name);
    let excluded = logind_says("KillExcludeUsers").await.unwrap_or_default();
    let only = logind_says("KillOnlyUsers").await.unwrap_or_default();
    if names(&excluded).contains(&user) || !names(&only).is_empty() && !names(&only).contains(&user) {
        return Ok(Vec::new());
    }
    if answer(Command::new("loginctl").arg("enable-linger")).await.is_none() {
        let what = format!(
            "logind ends all processes of {user} when the login that started them ends: its admin allows them by `loginctl enable-linger \
             {user}`, or by KillUserProcesses=no in logind.conf"
        );
        return Err(Trouble::new(TroubleKind::Auth, what));
    }
    let manager = format!("XDG_RUNTIME_DIR=/run/user/{}", geteuid());
    let words = ["env", &manager, "systemd-run", "--user", "--scope", "--quiet", "--collect", "--"];
    Ok(words.into_iter().chain(["env", "-u", "XDG_RUNTIME_DIR"]).map(str::to_owned).collect())
}

/// A property of logind as `busctl` prints it; none where there is no logind.
async fn logind_says(property: &str) -> Option<String> {
    let path = ["org.freedesktop.login1", "/org/freedesktop/login1", "org.freedesktop.login1.Manager"];
    answer(Command::new("busctl").arg("get-property").args(path).arg(property)).await
}

async fn answer(command: &mut Command) -> Option<String> {
    let said = command.stdin(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true).output();
    let said = tokio::time::timeout(ANSWERED_WITHIN, said).await.ok()?.ok()?;
    said.status.success().then(|| String::from_utf8_lossy(&said.stdout).trim().to_owned())
}

/// Of `as 2 "root" "ada"`.
fn names(list: &str) -> Vec<String> {
    list.split('"').skip(1).step_by(2).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_users_is_read_as_busctl_prints_it() {
        assert_eq!(names("as 2 \"root\" \"ada\""), ["root", "ada"]);
        assert_eq!(names("as 0"), Vec::<String>::new());
    }
}

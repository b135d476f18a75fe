//! What is started for a process agent and for a shell: arguments, environment, limits. The supervisor does the rest.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::handover::{ChildSettings, Handover as Settings, HandoverError, ModePage};
use super::job::{JobOwner, OWNER_VERSION};
use crate::agent::Role;
use crate::agent::budget::Budget;
use crate::config::environment::{BUDGET_FD, HANDOVER_FD, HOME, JOB, MODE_FD, SUBAGENT};
use crate::config::{Environment, Layout, Limits};
use crate::ids::{JobId, JobKind, SessionId};
use crate::permissions::sandbox::ShellRights;
use crate::supervisor::launch::{Handover, Order};
use crate::supervisor::plan::{LaunchPlan, OnOwnerDeath, OutputCaps, PLAN_VERSION, Program};
use crate::text::subagent_replies::CLI;

/// What does not change from one start to the next.
#[derive(Clone)]
pub(crate) struct Starter {
    pub layout: Layout,
    pub limits: Arc<Limits>,
    pub session: SessionId,
    pub cwd: PathBuf,
    pub environment: Environment,
    pub child: ChildSettings,
    pub child_program: Program,
    pub mode_page: Option<ModePage>,
    /// Shared with every child.
    pub budget: Option<Arc<Budget>>,
    pub role: Role,
    pub hidden_variables: Vec<String>,
    pub on_owner_death: OnOwnerDeath,
}

/// A shell line to run.
#[derive(Clone, Debug)]
pub struct ShellOrder {
    pub command: String,
    /// Five to ten words; the title of the job.
    pub description: Option<String>,
    pub cwd: PathBuf,
    pub call_id: Option<String>,
    pub background: bool,
    pub rights: ShellRights,
}

/// `argv[0]` of every process of ours.
const OWN_NAME: &str = "zapmyco";

impl Starter {
    /// `zapmyco run --subagent -- <task>`; a long task through `--task-file` (R343).
    pub(crate) fn agent(&self, id: &JobId, task: &str, call_id: Option<String>) -> Result<Order, HandoverError> {
        let folder = self.layout.job(&self.session, id);
        let task_max = usize::try_from(self.limits.task_argument_max).unwrap_or(usize::MAX);
        let mut argv: Vec<OsString> = [OWN_NAME, "run", "--subagent"].map(OsString::from).to_vec();
        let by_file = task.len() > task_max;
        if by_file {
            argv.extend(["--task-file".into(), folder.task().into_os_string()]);
        } else {
            argv.extend(["--".into(), task.into()]);
        }
        let (title, stored_task) = JobOwner::shorten(task, task, task_max);
        let owner = JobOwner {
            version: OWNER_VERSION,
            id: id.clone(),
            session: self.session.clone(),
            kind: JobKind::ProcessAgent,
            title,
            task: stored_task,
            cli: Some(CLI.to_owned()),
            cwd: self.cwd.clone(),
            time_limit_ms: millis(self.limits.process_time_limit),
            call_id,
            background: true,
            sandbox: None,
        };
        let mut environment = self.environment_for(&[SUBAGENT, HOME], &[]);
        environment.push((SUBAGENT.into(), id.as_str().into()));
        environment.push((HOME.into(), self.layout.root().into()));
        let share = self.budget.as_ref().map(|budget| budget.share());
        let settings = Settings::new(&self.child, share, self.layout.root(), &self.session, self.limits.stop_grace);
        let mut handover = vec![Handover { variable: HANDOVER_FD, file: settings.to_memory()? }];
        if let Some(page) = &self.mode_page {
            let file = page.descriptor().map_err(|source| HandoverError::Create { source })?;
            handover.push(Handover { variable: MODE_FD, file });
        }
        if let Some(budget) = &self.budget {
            let file = budget.ledger().map_err(|source| HandoverError::Create { source })?;
            handover.push(Handover { variable: BUDGET_FD, file });
        }
        let limit = Some(self.limits.process_time_limit);
        let plan = self.plan(self.child_program.clone(), argv, environment, self.cwd.clone(), limit);
        Ok(self.order(owner, plan, by_file.then(|| task.as_bytes().to_vec()), handover))
    }

    /// One line of a shell, under its own keeper like everything else.
    pub(crate) fn shell(&self, id: &JobId, shell: ShellOrder) -> Order {
        let (program, name) = shell_program();
        let argv = [OsString::from(name), "-c".into(), OsString::from(&shell.command)].to_vec();
        let title = shell.description.as_deref().filter(|text| !text.trim().is_empty()).unwrap_or(&shell.command);
        let (title, task) = JobOwner::shorten(title, &shell.command, SHELL_COMMAND_STORED_MAX);
        let owner = JobOwner {
            version: OWNER_VERSION,
            id: id.clone(),
            session: self.session.clone(),
            kind: JobKind::Shell,
            title,
            task,
            cli: None,
            cwd: shell.cwd.clone(),
            time_limit_ms: millis(self.limits.background_shell_max),
            call_id: shell.call_id,
            background: shell.background,
            sandbox: Some(shell.rights.report),
        };
        let mut environment = self.environment_for(&[SUBAGENT], &self.hidden_variables);
        if self.role != Role::Main {
            // The child's own mark when it has one, else its session's name: only the presence counts.
            let mark = self.environment.raw(SUBAGENT).cloned().unwrap_or_else(|| self.session.as_str().into());
            environment.push((SUBAGENT.into(), mark));
        }
        // A foreground shell may be moved to the background at any time, so it has that limit from the start.
        let mut plan = self.plan(program, argv, environment, shell.cwd, Some(self.limits.background_shell_max));
        plan.temporary_below = shell.rights.private_temporary.then(|| self.environment.temporary_folder());
        plan.confinement = shell.rights.confinement;
        self.order(owner, plan, None, Vec::new())
    }

    fn plan(
        &self,
        program: Program,
        argv: Vec<OsString>,
        environment: Vec<(OsString, OsString)>,
        cwd: PathBuf,
        time_limit: Option<Duration>,
    ) -> LaunchPlan {
        LaunchPlan {
            version: PLAN_VERSION,
            program,
            argv,
            environment,
            cwd,
            output: OutputCaps { kept_max: self.limits.output_kept_max, tail_max: self.limits.output_tail_kept },
            time_limit,
            grace: self.limits.stop_grace,
            drain: self.limits.drain_time,
            on_owner_death: self.on_owner_death,
            temporary_below: None,
            confinement: None,
        }
    }

    fn order(&self, owner: JobOwner, plan: LaunchPlan, task_file: Option<Vec<u8>>, handover: Vec<Handover>) -> Order {
        Order {
            plan,
            folder: self.layout.job(&self.session, &owner.id),
            id: owner.id.to_string(),
            // Plain data with string keys, and paths in a form of their own: it has a JSON form.
            owner: serde_json::to_value(&owner).unwrap_or_default(),
            task_file,
            stdin: None,
            handover,
            ack_max: self.limits.start_ack_max,
            retries: self.limits.start_retries,
        }
    }

    /// Our environment without the keeper's marker (it adds its own), `replaced` and `hidden`.
    fn environment_for(&self, replaced: &[&str], hidden: &[String]) -> Vec<(OsString, OsString)> {
        let left_out = |name: &OsString| {
            name == JOB
                || name == HANDOVER_FD
                || name == MODE_FD
                || name == BUDGET_FD
                || replaced.iter().any(|known| name == known)
                || hidden.iter().any(|known| name == known.as_str())
        };
        self.environment.all().iter().filter(|(name, _)| !left_out(name)).cloned().collect()
    }
}

/// Bytes of a command kept in `spec.json`.
const SHELL_COMMAND_STORED_MAX: usize = 64 * 1024;

fn millis(duration: Duration) -> Option<u64> {
    u64::try_from(duration.as_millis()).ok()
}

/// Bash where it is, else the shell every system has.
fn shell_program() -> (Program, &'static str) {
    if Path::new("/bin/bash").exists() { (Program::At("/bin/bash".into()), "bash") } else { (Program::At("/bin/sh".into()), "sh") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::permissions::{Mode, Policy, RuleSet};

    fn starter(role: Role) -> Starter {
        let limits = Limits { task_argument_max: 10, ..Limits::default() };
        Starter {
            layout: Layout::new("/r".into()),
            limits: limits.into(),
            session: SessionId::from_name("n").unwrap(),
            cwd: "/p".into(),
            environment: Environment::from_pairs([
                ("PATH", "/bin"),
                ("ANTHROPIC_API_KEY", "secret"),
                ("ZAPMYCO_JOB", "/a.b"),
                ("ZAPMYCO_HANDOVER_FD", "7"),
                ("ZAPMYCO_MODE_FD", "8"),
                ("ZAPMYCO_HOME", "/other"),
            ]),
            child: ChildSettings::default(),
            child_program: Program::Own,
            mode_page: None,
            budget: None,
            role,
            hidden_variables: vec!["ANTHROPIC_API_KEY".into()],
            on_owner_death: OnOwnerDeath::Stop,
        }
    }

    fn names(plan: &LaunchPlan) -> Vec<String> {
        plan.environment.iter().map(|(name, value)| format!("{}={}", name.display(), value.display())).collect()
    }

    /// R343, R348, R349
    #[test]
    fn a_task_is_the_last_argument_or_a_file() {
        let id = JobId::parse("sa_20260606_a1b2c3d4").unwrap();
        let order = starter(Role::Main).agent(&id, "--help\nx", None).unwrap();
        assert_eq!(order.plan.argv, ["zapmyco", "run", "--subagent", "--", "--help\nx"]);
        assert_eq!(order.plan.cwd, Path::new("/p"));
        assert_eq!(
            names(&order.plan),
            ["PATH=/bin", "ANTHROPIC_API_KEY=secret", "ZAPMYCO_SUBAGENT=sa_20260606_a1b2c3d4", "ZAPMYCO_HOME=/r"]
        );
        let order = starter(Role::Main).agent(&id, "0123456789a", None).unwrap();
        assert_eq!(order.plan.argv[3], "--task-file");
        assert_eq!(order.plan.argv[4], "/r/subagents/name_n/sa_20260606_a1b2c3d4/task.txt");
        assert_eq!(order.task_file.as_deref(), Some(b"0123456789a".as_slice()));
        assert_eq!(order.handover.len(), 1);
    }

    /// R332, R349
    #[test]
    fn shells_get_no_keys_and_below_a_child_the_mark() {
        let id = JobId::parse("sh_a1b2c3d4").unwrap();
        let rights = Policy::new(Mode::Yolo, RuleSet::default(), "/p".into()).shell_rights();
        let shell = || ShellOrder {
            command: "ls".into(),
            description: None,
            cwd: "/p".into(),
            call_id: None,
            background: false,
            rights: rights.clone(),
        };
        assert_eq!(names(&starter(Role::Main).shell(&id, shell()).plan), ["PATH=/bin", "ZAPMYCO_HOME=/other"]);
        let plan = starter(Role::ProcessChild).shell(&id, shell()).plan;
        assert!(names(&plan).contains(&"ZAPMYCO_SUBAGENT=name_n".to_owned()));
        assert_eq!(plan.argv[1..], ["-c", "ls"]);
    }
}

//! A child's question goes to whoever its parent asks, under the parent's session and with the child as origin. Can be
//! stacked: the outermost layer sets the address, the innermost keeps the origin (R234, R238, R239).

use std::sync::Arc;

use futures_util::future::BoxFuture;

use super::local::LocalAgent;
use crate::permissions::approval::{ApprovalRequest, Approver, Decision, Origin, OriginKind, Subject};

/// The approver of a child's session.
pub struct ThroughParent {
    agent: Arc<LocalAgent>,
    parent: Arc<dyn Approver>,
    /// A child in the background may put questions to the person (R236).
    background_questions: bool,
}

impl ThroughParent {
    pub fn new(agent: Arc<LocalAgent>, parent: Arc<dyn Approver>, background_questions: bool) -> Self {
        Self { agent, parent, background_questions }
    }

    fn readdressed(&self, request: ApprovalRequest) -> ApprovalRequest {
        ApprovalRequest {
            session: self.agent.parent.clone(),
            call_id: self.agent.mirrored_call(&request.call_id),
            origin: Some(request.origin.unwrap_or_else(|| self.origin())),
            ..request
        }
    }

    fn origin(&self) -> Origin {
        let origin = self.agent.origin();
        Origin {
            kind: OriginKind::Subagent,
            agent_id: origin.agent_id,
            child_session_id: origin.child_session_id,
            parent_tool_call_id: origin.parent_tool_call_id,
            agent_type: origin.agent_type,
            description: origin.description,
            background: origin.background,
            parent_session_id: self.agent.parent.clone(),
            child_turn_id: None,
            parent_turn_id: None,
        }
    }
}

impl Approver for ThroughParent {
    fn is_attended(&self) -> bool {
        self.parent.is_attended()
    }

    fn ask(&self, request: ApprovalRequest) -> BoxFuture<'_, Decision> {
        let is_question = matches!(request.subject, Subject::Questions(_));
        if is_question && self.agent.is_background() && !self.background_questions {
            return Box::pin(std::future::ready(Decision::Unanswered));
        }
        self.parent.ask(self.readdressed(request))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use serde_json::json;

    use super::*;
    use crate::ids::SessionId;
    use crate::permissions::approval::{CallSubject, StillOpen};
    use crate::subagents::local::tests::agent_of;

    #[derive(Default)]
    struct Root(Mutex<Vec<ApprovalRequest>>);

    impl Approver for Root {
        fn is_attended(&self) -> bool {
            true
        }

        fn ask(&self, request: ApprovalRequest) -> BoxFuture<'_, Decision> {
            self.0.lock().unwrap().push(request);
            Box::pin(std::future::ready(Decision::Once))
        }
    }

    fn request(session: &SessionId, subject: Subject) -> ApprovalRequest {
        ApprovalRequest {
            session: session.clone(),
            origin: None,
            call_id: "c1".into(),
            tool: "Write".into(),
            input: json!({"file_path": "a"}),
            cwd: "/w".into(),
            subject,
            still_open: StillOpen::new(|| true),
        }
    }

    /// R234, R238, R239: at any depth the question goes out under the root's id and names the real asker.
    #[tokio::test]
    async fn three_layers_end_at_the_root_and_keep_the_innermost_origin() {
        let root = Arc::new(Root::default());
        let main = SessionId::new_main();
        let outer = agent_of(&main, "outer");
        let middle = agent_of(&outer.session, "middle");
        let inner = agent_of(&middle.session, "inner");
        let mut approver: Arc<dyn Approver> = root.clone();
        for agent in [&outer, &middle, &inner] {
            approver = Arc::new(ThroughParent::new(agent.clone(), approver, true));
        }
        assert!(approver.is_attended());
        let decision = approver.ask(request(&inner.session, Subject::Call(CallSubject::default()))).await;
        assert_eq!(decision, Decision::Once);
        let asked = root.0.lock().unwrap().pop().unwrap();
        assert_eq!(asked.session, main);
        assert_eq!(asked.call_id, format!("tool_subagent_{}_tool_subagent_{}_tool_subagent_{}_c1", outer.id, middle.id, inner.id));
        let origin = serde_json::to_value(asked.origin.unwrap()).unwrap();
        assert_eq!(
            origin,
            json!({"kind": "subagent", "agentId": inner.id, "childSessionId": inner.session, "parentToolCallId": "call_inner",
                   "agentType": "general-purpose", "description": "inner", "background": false, "parentSessionId": middle.session})
        );
    }

    /// R236: a setting keeps questions of children in the background from the person, and only those.
    #[tokio::test]
    async fn questions_from_the_background_can_be_switched_off() {
        let root = Arc::new(Root::default());
        let agent = agent_of(&SessionId::new_main(), "child");
        let approver = ThroughParent::new(agent.clone(), root.clone(), false);
        assert_eq!(approver.ask(request(&agent.session, Subject::Questions(Vec::new()))).await, Decision::Once);
        assert!(agent.set_background());
        assert_eq!(approver.ask(request(&agent.session, Subject::Questions(Vec::new()))).await, Decision::Unanswered);
        assert_eq!(approver.ask(request(&agent.session, Subject::Call(CallSubject::default()))).await, Decision::Once);
    }
}

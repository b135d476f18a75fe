//! A tool whose results are freed of the values of configured keys, before the model, the records or anyone else sees them.

use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use serde_json::Value;

use crate::agent::tool::{Tool, ToolBox, ToolContext, ToolFailure, ToolReply, ToolSpec};
use crate::config::Limits;
use crate::permissions::Effect;
use crate::permissions::approval::Question;
use crate::secrets::Secrets;

/// The same tools with redacted results.
pub(crate) fn redacted(toolbox: ToolBox, secrets: &Secrets) -> ToolBox {
    if secrets.is_empty() {
        return toolbox;
    }
    toolbox.mapped(|tool| Arc::new(Redacting { inner: tool, secrets: secrets.clone() }))
}

struct Redacting {
    inner: Arc<dyn Tool>,
    secrets: Secrets,
}

impl Tool for Redacting {
    fn spec(&self) -> &ToolSpec {
        self.inner.spec()
    }

    fn effect(&self, input: &Value, context: &ToolContext) -> Result<Effect, ToolFailure> {
        self.inner.effect(input, context).map_err(|failure| self.failure(failure))
    }

    fn result_max(&self, limits: &Limits) -> u64 {
        self.inner.result_max(limits)
    }

    fn only_waits(&self) -> bool {
        self.inner.only_waits()
    }

    fn change<'a>(&'a self, input: &'a Value, context: &'a ToolContext) -> BoxFuture<'a, Result<Option<String>, ToolFailure>> {
        self.inner.change(input, context)
    }

    fn questions(&self, input: &Value) -> Option<Vec<Question>> {
        self.inner.questions(input)
    }

    fn call<'a>(&'a self, input: Value, context: ToolContext) -> BoxFuture<'a, Result<ToolReply, ToolFailure>> {
        async move {
            match self.inner.call(input, context).await {
                Ok(reply) => Ok(ToolReply {
                    text: self.secrets.redacted(&reply.text).into_owned(),
                    structured: reply.structured.map(|value| self.secrets.redacted_value(value)),
                }),
                Err(failure) => Err(self.failure(failure)),
            }
        }
        .boxed()
    }
}

impl Redacting {
    fn failure(&self, failure: ToolFailure) -> ToolFailure {
        ToolFailure {
            kind: failure.kind,
            message: self.secrets.redacted(&failure.message).into_owned(),
            hint: failure.hint.map(|hint| self.secrets.redacted(&hint).into_owned()),
        }
    }
}

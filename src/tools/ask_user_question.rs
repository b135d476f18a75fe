//! The tool `AskUserQuestion`: puts one to four questions to the person and returns the answers to whoever asked. It is
//! itself an approval: the answers come the way every answer of a person comes (R235 to R237).

use std::collections::HashSet;

use futures_util::future::BoxFuture;
use serde::Deserialize;
use serde_json::{Value, json};

use super::arguments::{Parsed, parse};
use crate::agent::ANSWERS;
use crate::agent::tool::{ApprovalNeed, Tool, ToolContext, ToolFailure, ToolReply, ToolSpec};
use crate::models::ToolDeclaration;
use crate::permissions::Effect;
use crate::permissions::approval::{Answer, Question, QuestionOption};

pub const NAME: &str = "AskUserQuestion";

const QUESTIONS_MAX: usize = 4;
const OPTIONS_MIN: usize = 2;
const OPTIONS_MAX: usize = 4;
/// Characters.
const HEADER_MAX: usize = 12;
const QUESTION_MAX: usize = 2000;
const LABEL_MAX: usize = 200;
const DESCRIPTION_MAX: usize = 2000;
const PREVIEW_MAX: usize = 4000;

pub struct AskUserQuestion {
    spec: ToolSpec,
}

/// As the model wrote it; a list where a name of the schema is missing is told by `parse`.
#[derive(Deserialize)]
struct Arguments {
    questions: Vec<Asked>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Asked {
    question: String,
    header: String,
    options: Vec<QuestionOption>,
    #[serde(default)]
    multi_select: bool,
}

impl Default for AskUserQuestion {
    fn default() -> Self {
        Self::new()
    }
}

impl AskUserQuestion {
    pub fn new() -> Self {
        let option = json!({
            "type": "object",
            "properties": {
                "label": {"type": "string", "description": "The choice, in one to five words"},
                "description": {"type": "string", "description": "What choosing it means"},
                "preview": {"type": "string", "description": "Text shown below it, e.g. a piece of code"}
            },
            "required": ["label", "description"]
        });
        let question = json!({
            "type": "object",
            "properties": {
                "question": {"type": "string", "description": "The whole question, with a question mark"},
                "header": {"type": "string", "description": "A word or two that stand for it, at most 12 characters"},
                "options": {"type": "array", "items": option, "description": "2 to 4 choices; the user can always answer in own words"},
                "multiSelect": {"type": "boolean", "description": "Several may be chosen"}
            },
            "required": ["question", "header", "options"]
        });
        let declaration = ToolDeclaration {
            name: NAME.into(),
            description: "Asks the user one to four questions with choices, when a decision is theirs and cannot be found out otherwise. \
                          Not for permission: calls that need it are asked about by themselves. When nobody can answer, you are told to \
                          decide yourself."
                .into(),
            input_schema: json!({
                "type": "object",
                "properties": {"questions": {"type": "array", "items": question, "description": "1 to 4 questions"}},
                "required": ["questions"]
            }),
        };
        Self { spec: ToolSpec { declaration, aliases: &[], concurrent: true, approval: ApprovalNeed::Never } }
    }

    fn checked(&self, input: &Value) -> Result<Parsed<Vec<Question>>, ToolFailure> {
        // The answers are ours, whoever wrote them.
        let mut input = input.clone();
        if let Value::Object(fields) = &mut input {
            fields.remove(ANSWERS);
        }
        let Parsed { value, notes } = parse::<Arguments>(&self.spec.declaration, &input)?;
        let problem = |message: String| {
            ToolFailure::invalid(format!("{NAME}: {message}")).with_hint(
                "send {\"questions\": [{\"question\", \"header\", \"options\": [{\"label\", \"description\"}, ..], \"multiSelect\"?}, ..]}",
            )
        };
        let questions = questions_of(value).map_err(problem)?;
        Ok(Parsed { value: questions, notes })
    }
}

/// What is wrong names the place as the model would write it.
fn questions_of(arguments: Arguments) -> Result<Vec<Question>, String> {
    let count = arguments.questions.len();
    if !(1..=QUESTIONS_MAX).contains(&count) {
        return Err(format!("`questions` has {count} entries; ask 1 to {QUESTIONS_MAX} questions at once"));
    }
    let mut seen = HashSet::new();
    let mut questions = Vec::new();
    for (place, asked) in arguments.questions.into_iter().enumerate() {
        let at = format!("questions[{place}]");
        let question = bounded(&format!("{at}.question"), &asked.question, QUESTION_MAX)?;
        let header = bounded(&format!("{at}.header"), &asked.header, HEADER_MAX)?;
        if !seen.insert(question.clone()) {
            return Err(format!("`{at}.question` is asked twice; each question must differ"));
        }
        let options = options_of(&at, asked.options)?;
        questions.push(Question { question, header, options, multi_select: asked.multi_select });
    }
    Ok(questions)
}

fn options_of(at: &str, options: Vec<QuestionOption>) -> Result<Vec<QuestionOption>, String> {
    let count = options.len();
    if !(OPTIONS_MIN..=OPTIONS_MAX).contains(&count) {
        return Err(format!(
            "`{at}.options` has {count} entries; give {OPTIONS_MIN} to {OPTIONS_MAX} (own words are always possible, they need no option)"
        ));
    }
    let mut labels = HashSet::new();
    let mut checked = Vec::new();
    for (place, option) in options.into_iter().enumerate() {
        let at = format!("{at}.options[{place}]");
        let label = bounded(&format!("{at}.label"), &option.label, LABEL_MAX)?;
        if !labels.insert(label.to_lowercase()) {
            return Err(format!("`{at}.label` is `{label}` for the second time; the labels of a question must differ"));
        }
        if option.description.chars().count() > DESCRIPTION_MAX {
            return Err(format!("`{at}.description` is longer than {DESCRIPTION_MAX} characters"));
        }
        let preview = option.preview.filter(|preview| !preview.trim().is_empty());
        if preview.as_ref().is_some_and(|preview| preview.chars().count() > PREVIEW_MAX) {
            return Err(format!("`{at}.preview` is longer than {PREVIEW_MAX} characters"));
        }
        checked.push(QuestionOption { label, description: option.description, preview });
    }
    Ok(checked)
}

fn bounded(name: &str, text: &str, max: usize) -> Result<String, String> {
    let text = text.trim();
    let length = text.chars().count();
    match length {
        0 => Err(format!("`{name}` is empty")),
        _ if length > max => Err(format!("`{name}` has {length} characters; at most {max} are allowed")),
        _ => Ok(text.to_owned()),
    }
}

fn reply(questions: &[Question], answers: Option<&[Answer]>) -> ToolReply {
    let Some(answers) = answers else {
        let text = "Nobody can answer in this run. Decide by your best judgement, go on, and say in your final answer what you assumed.";
        return ToolReply { text: text.to_owned(), structured: Some(json!({ "answered": false })) };
    };
    let lines: Vec<String> = questions
        .iter()
        .filter_map(|question| {
            let answer = answers.iter().find(|answer| answer.question == question.question)?;
            Some(format!("{}\n-> {}", question.question, answer.answer))
        })
        .collect();
    ToolReply {
        text: format!("The user has answered:\n\n{}", lines.join("\n\n")),
        structured: Some(json!({ "answered": true, "answers": answers })),
    }
}

impl Tool for AskUserQuestion {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn effect(&self, input: &Value, _context: &ToolContext) -> Result<Effect, ToolFailure> {
        self.checked(input).map(|_| Effect::Internal)
    }

    /// A person's time has no limit, and other calls need not wait for it.
    fn only_waits(&self) -> bool {
        true
    }

    fn questions(&self, input: &Value) -> Option<Vec<Question>> {
        self.checked(input).ok().map(|parsed| parsed.value)
    }

    fn call<'a>(&'a self, input: Value, _context: ToolContext) -> BoxFuture<'a, Result<ToolReply, ToolFailure>> {
        Box::pin(async move {
            let parsed = self.checked(&input)?;
            let answers = input.get(ANSWERS).and_then(|answers| serde_json::from_value::<Vec<Answer>>(answers.clone()).ok());
            Ok(parsed.annotate(reply(&parsed.value, answers.as_deref())))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(questions: Value) -> String {
        let tool = AskUserQuestion::new();
        tool.checked(&json!({ "questions": questions })).unwrap_err().message
    }

    fn one(change: impl FnOnce(&mut Value)) -> Value {
        let mut question = json!({"question": "Which one?", "header": "Choice", "options": [
            {"label": "A", "description": "the first"}, {"label": "B", "description": "the second"}]});
        change(&mut question);
        json!([question])
    }

    /// R237
    #[test]
    fn what_is_wrong_with_questions_is_named_by_place() {
        assert_eq!(problem(json!([])), "AskUserQuestion: `questions` has 0 entries; ask 1 to 4 questions at once");
        assert!(problem(json!(vec![one(|_| {})[0].clone(); 5])).contains("has 5 entries"));
        assert!(problem(json!(vec![one(|_| {})[0].clone(); 2])).contains("`questions[1].question` is asked twice"));
        assert!(problem(one(|q| q["header"] = json!("thirteen char"))).contains("`questions[0].header` has 13 characters; at most 12"));
        assert!(problem(one(|q| q["question"] = json!("  "))).contains("`questions[0].question` is empty"));
        assert!(
            problem(one(|q| q["options"] = json!([{"label": "A", "description": ""}]))).contains("`questions[0].options` has 1 entries")
        );
        assert!(
            problem(one(|q| q["options"][1]["label"] = json!("a"))).contains("`questions[0].options[1].label` is `a` for the second time")
        );
        assert!(
            problem(one(|q| {
                q.as_object_mut().unwrap().remove("header");
            }))
            .contains("header")
        );
        assert!(AskUserQuestion::new().checked(&json!({ "questions": one(|_| {}) })).is_ok());
    }

    /// R237
    #[test]
    fn without_an_answer_the_model_decides() {
        let questions = AskUserQuestion::new().checked(&json!({ "questions": one(|_| {}) })).unwrap().value;
        assert!(reply(&questions, None).text.contains("Decide by your best judgement"));
        let answers = [Answer { question: "Which one?".into(), answer: "B".into() }];
        assert_eq!(reply(&questions, Some(&answers)).text, "The user has answered:\n\nWhich one?\n-> B");
    }
}

//! The web tools of a session and its children, made from the section `[web]` of the settings.

use std::sync::Arc;

use crate::agent::budget::Budget;
use crate::agent::tool::Tool;
use crate::app::model::ChosenModel;
use crate::app::{App, AppError};
use crate::models::ResolvedModel;
use crate::models::search::ModelSearch;
use crate::permissions::Policy;
use crate::secrets::KeyStore;
use crate::tools::web_fetch::WebFetch;
use crate::tools::web_search::{Engine, WebSearch};
use crate::web::search::{Kind, SearchSettings};
use crate::web::{Fetcher, WebSettings};

/// What the web tools of all sessions of this process share.
#[derive(Clone)]
pub(super) struct Web {
    fetcher: Arc<Fetcher>,
    engine: Arc<Engine>,
    budget: Arc<Budget>,
}

impl App {
    pub(super) fn web(&self, chosen: &ChosenModel, budget: Arc<Budget>) -> Result<Web, AppError> {
        let settings: WebSettings = self.settings.section("web")?.unwrap_or_default();
        let engine = self.engine(&settings.search, chosen);
        let fetcher = Fetcher::new(settings.allow_private, &self.limits, &self.environment);
        Ok(Web { fetcher: Arc::new(fetcher), engine: Arc::new(engine), budget })
    }

    /// An endpoint that is set up is the user's word and comes first; then the search of the model's provider.
    fn engine(&self, settings: &SearchSettings, chosen: &ChosenModel) -> Engine {
        match settings.endpoint(&self.limits, &self.environment, &KeyStore::of(self.layout.root())) {
            Ok(Some(endpoint)) => return Engine::Endpoint(endpoint),
            // Told when a search is wanted: a run that needs none goes on.
            Err(error) => return Engine::None { reason: Some(error.to_string()) },
            Ok(None) => {}
        }
        let said = settings.kind == Some(Kind::Model);
        let model = ResolvedModel::from_handover(&chosen.for_children).ok().filter(|_| chosen.is_remote);
        let search = model.and_then(|model| {
            let gate = model.gate(&self.layout.gate_folder());
            ModelSearch::of(model, &self.limits, gate, said)
        });
        match search {
            Some(search) => Engine::Model(search),
            None if said => Engine::None { reason: Some(format!("{} speaks a protocol without one", chosen.model.name())) },
            None => Engine::None { reason: None },
        }
    }
}

impl Web {
    pub(super) fn tools(&self, policy: &Arc<Policy>) -> Vec<Arc<dyn Tool>> {
        vec![
            Arc::new(WebFetch::new(Arc::clone(&self.fetcher), Arc::clone(policy))),
            Arc::new(WebSearch::new(Arc::clone(&self.engine), Arc::clone(&self.budget))),
        ]
    }
}

//! The main job on the user's own folder with a scripted model.

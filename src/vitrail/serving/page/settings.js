// What all windows show alike: the view, the layer and head, how strong the overlay is. Listeners hear of every change.

export const VIEWS = [
  { name: "picture", title: "Picture", needs: null },
  { name: "attention", title: "Attention", needs: "weights" },
  { name: "rollout", title: "Rollout", needs: "attention" },
  { name: "class", title: "Class", needs: "attribution" },
];

class Settings extends EventTarget {
  facts = null; // of the model
  view = "picture";
  layer = 0;
  head = -1; // the mean of all
  opacity = 0.9;
  dropping = "blank";
  sharp = true; // the file's own pixels where they are finer than the model's

  set(changes) {
    const changed = Object.keys(changes).filter((key) => this[key] !== changes[key]);
    if (!changed.length) return;
    Object.assign(this, changes);
    this.dispatchEvent(new CustomEvent("change", { detail: changed }));
  }

  /** Those that this model has. */
  get views() {
    return VIEWS.filter(({ needs }) => !needs || this.facts?.can[needs]);
  }

  /** The model is another one: what it does not have is left. */
  useModel(facts) {
    facts.can.weights = facts.can.attention && facts.layers_at_once > 0; // small enough to be sent
    const layer = Math.max(0, Math.round(facts.layers * 0.75) - 1); // where panes have found what belongs together
    const { can } = facts;
    const stays = VIEWS.some(({ name, needs }) => name === this.view && (!needs || can[needs]));
    this.set({ facts, layer, head: -1, view: stays ? this.view : "picture", dropping: can.remove ? this.dropping : "blank" });
  }
}

export const settings = new Settings();

"""What the benchmarks ask. Plain data and the choice of prompts per round; knows no model."""

from msgspec import Struct

# Continued greedily by the embedded model, none of these ends within 100 tokens, and no answer starts with a
# space, which mlx-lm's detokenizer would drop. Their first words differ, so no prompt cache shortens one.
_SUBJECTS = (
    *("Rivers", "Bridges", "Candles", "Maps", "Gardens", "Trains", "Lighthouses", "Bees", "Mountains"),
    *("Paper", "Glass", "Oceans", "Forests", "Bread", "Tea", "Silk", "Iron", "Salt"),
    *(
        "Wool",
        "Ships",
        "Castles",
        "Libraries",
        "Markets",
        "Festivals",
        "Telescopes",
        "Windmills",
        "Volcanoes",
    ),
    *("Glaciers", "Deserts", "Islands", "Harbours", "Tunnels", "Kites", "Violins", "Drums", "Coins"),
    *("Stamps", "Mirrors", "Lamps", "Wheels", "Ropes", "Nails", "Bricks", "Carpets", "Horses"),
    *("Owls", "Whales", "Ants", "Apples", "Olives", "Potatoes", "Rice", "Sugar", "Pepper"),
)
WARM_UP_SUBJECTS = ("Cotton", "Copper", "Linen", "Amber", "Chalk", "Cork", "Ivory", "Jade")


class ChatPrompt(Struct, frozen=True):
    """One user message and the kind of text it asks for."""

    kind: str
    text: str


KINDS = ("story", "facts", "code", "list", "dialogue")

# Held out: neither these sentences nor their subjects are among the prompts a drafter is fitted on.
CHAT_PROMPTS = (
    ChatPrompt(
        "story", "Please tell me a tale in which a retired sailor finds a whistle that calls the fog."
    ),
    ChatPrompt("facts", "I am preparing a talk on camels. Which facts should I mention?"),
    ChatPrompt(
        "code", "In Python, how would I turn a Roman numeral into an integer? Show the code and comment it."
    ),
    ChatPrompt("list", "Put together a packing list for a week in a cabin without heating."),
    ChatPrompt("dialogue", "Script a talk between a taxi driver and a passenger who has lost her umbrella."),
    ChatPrompt("story", "Begin a mystery that is set in a small bakery during a snowstorm."),
    ChatPrompt("facts", "How do suspension bridges carry their load? Stick to the important facts."),
    ChatPrompt(
        "code", "Give me a Python class for a priority queue of tasks with deadlines, with a usage example."
    ),
    ChatPrompt("list", "What belongs in a first-aid kit for a sailing school? Answer as a numbered list."),
    ChatPrompt("dialogue", "Let a grandmother and her grandson discuss whether to sell the old piano."),
    ChatPrompt("story", "Narrate how a shy clockmaker wins a kite-flying contest by accident."),
    ChatPrompt("facts", "Describe the planet Saturn to a visitor of an observatory."),
    ChatPrompt(
        "code", "Write JavaScript that groups an array of orders by customer and adds up their prices."
    ),
    ChatPrompt("list", "Suggest twelve names for a boat and give a reason for each of them."),
    ChatPrompt("dialogue", "Two astronauts argue about who ate the last chocolate bar. Write what they say."),
    ChatPrompt("story", "Invent a fairy tale that explains why the ferry to the mainland only runs at dusk."),
    ChatPrompt("facts", "Someone asked me how cork is harvested. What are the facts?"),
    ChatPrompt(
        "code", "Write a SQL query that returns each shop's three best-selling products, and explain it."
    ),
    ChatPrompt("list", "Which ten questions should I ask before I rent a canoe?"),
    ChatPrompt(
        "dialogue", "Write the exchange between a customs officer and a magician with too many rabbits."
    ),
)
WARM_UP_CHAT = "Describe an ordinary pencil in a few sentences."


def completion_prompts(start: int, count: int) -> list[str]:
    """`count` text prompts from position `start` on; beyond the last they begin again."""
    subjects = [_SUBJECTS[(start + offset) % len(_SUBJECTS)] for offset in range(count)]
    return [_document(subject) for subject in subjects]


def warm_up_prompts(count: int) -> list[str]:
    """Up to eight text prompts that are never measured."""
    return [_document(subject) for subject in WARM_UP_SUBJECTS[:count]]


def _document(subject: str) -> str:
    return f"{subject}: a short history\n\n"

"""Subjects of the built-in fitting prompts, by field; plain data, one field a line group."""

_FIELDS = {
    "nature": """
        a mountain lake; the monsoon; coral reefs; a beehive; migrating geese; a desert at night; the
        redwood forest; volcanoes; an old oak tree; the life cycle of a frog; honey bees; wolves; the deep
        sea; snow leopards; mushrooms; a thunderstorm; tides; earthworms; penguins; the Amazon river;
        fireflies; a glacier; owls; octopuses; spring rain; dandelions; whales; the water cycle; spiders;
        elephants; hummingbirds; a tornado; moss; bats; sea turtles
    """,
    "science": """
        gravity; photosynthesis; black holes; vaccines; electricity; atoms; DNA; plate tectonics; evolution;
        magnets; the speed of light; antibiotics; the periodic table; climate change; sound waves; the human
        heart; neurons; enzymes; solar eclipses; the Moon; the planet Mars; comets; the immune system;
        radioactivity; entropy; prime numbers; probability; the scientific method; lasers; crystals; the
        ozone layer; sleep; memory; nuclear fusion; telescopes; friction; acids and bases; chlorophyll; stem
        cells; infinity
    """,
    "technology": """
        the internet; solar panels; electric cars; computer memory; databases; encryption; search engines;
        machine learning; robots; smartphones; satellites; 3D printing; batteries; operating systems; open
        source software; cloud computing; barcodes; GPS navigation; web browsers; computer viruses; drones;
        wind turbines; video games; digital cameras; passwords; email; spreadsheets; self-driving cars;
        microchips; fibre optic cables; compilers; virtual reality; the printing press; elevators;
        refrigerators
    """,
    "history": """
        the Roman Empire; the French Revolution; the Silk Road; the Industrial Revolution; ancient Egypt;
        the Vikings; the Renaissance; the Great Wall of China; the Apollo missions; the Ottoman Empire; the
        Black Death; Cleopatra; the fall of the Berlin Wall; samurai; the Library of Alexandria; the Magna
        Carta; the Aztecs; the Cold War; Marco Polo; the invention of paper; the Gold Rush; medieval
        castles; the Olympic Games; the Inca Empire; the discovery of penicillin; the telegraph; Napoleon;
        the suffragettes; the Titanic; ancient Greece
    """,
    "places": """
        Paris; Tokyo; the Sahara; Iceland; Venice; New Zealand; the Grand Canyon; Istanbul; Kyoto; Cape
        Town; Machu Picchu; the Alps; Rio de Janeiro; Antarctica; Edinburgh; Marrakesh; Hawaii; Vienna;
        Mumbai; the Nile; Stockholm; Havana; San Francisco; Prague; the Scottish Highlands; Singapore;
        Lisbon; Nairobi; Patagonia; Seoul
    """,
    "food": """
        pancakes; sourdough bread; vegetable soup; chocolate cake; green tea; sushi; tomato sauce; cheese;
        fried rice; apple pie; coffee; curry; a fruit salad; homemade pizza; noodles; roast chicken; hummus;
        ice cream; tacos; olive oil; oatmeal; lentil stew; lemonade; omelettes; dumplings; kimchi; honey;
        peanut butter cookies; salad dressing; ramen
    """,
    "work": """
        a nurse; a carpenter; a lighthouse keeper; a school teacher; a pilot; a librarian; a baker; a
        software engineer; a farmer; a detective; a fisherman; an astronaut; a violinist; a firefighter; a
        translator; a bus driver; a gardener; a watchmaker; a chef; a marine biologist; a postman; an
        architect; a veterinarian; a journalist; a tailor; a judge; a beekeeper; a plumber; a museum guide;
        a clown
    """,
    "hobbies": """
        chess; gardening; photography; hiking; knitting; bird watching; painting; running; playing the
        guitar; cooking; stargazing; swimming; pottery; reading novels; cycling; yoga; fishing; collecting
        stamps; dancing; woodworking; camping; learning languages; juggling; origami; sailing; skiing;
        writing poems; board games; calligraphy; rock climbing
    """,
    "life": """
        moving to a new city; a first job; making friends; saving money; a job interview; time management;
        losing a pet; public speaking; a healthy breakfast; stress before exams; a long-distance friendship;
        buying a house; good sleep; a family reunion; screen time; learning from mistakes; a birthday party;
        being kind; raising a puppy; procrastination; a road trip; cleaning the kitchen; remote work; a
        neighbour's noise; giving feedback; growing older; forgiveness; writing a resume; starting a small
        business; volunteering; patience; a lost wallet; homework; meditation; gratitude
    """,
    "society": """
        democracy; public libraries; recycling; inflation; taxes; public transport; free speech; tourism;
        advertising; human rights; voting; supply and demand; school uniforms; social media; minimum wage;
        urban farming; newspapers; insurance; charity; the stock market; juries; city parks; immigration;
        water shortages; bicycle lanes; privacy; renewable energy; online shopping; space exploration;
        plastic waste
    """,
    "art": """
        jazz; watercolour painting; Shakespeare; haiku; opera; the Mona Lisa; ballet; photography
        exhibitions; folk tales; impressionism; film music; sculpture; the piano; street art; science
        fiction; mosaics; tragedy; puppets; drums; fables; stained glass; autobiographies; comics;
        symphonies; theatre costumes
    """,
    "fantasy": """
        a dragon who is afraid of fire; a robot that learns to laugh; a talking cat; a hidden door in a
        library; a boy who can stop time; a haunted lighthouse; the last tree on Earth; a girl and her paper
        boat; a lost astronaut; a wizard's apprentice; a clock that runs backwards; a mouse in a castle; an
        island that moves; a magic paintbrush; a knight without a sword; a city under the sea; a letter from
        the future; twins on a distant planet; a brave snail; a village that forgot music; a ghost who loves
        baking; a map drawn on a wall; a fox and an owl; the moon's daughter; a train that never stops; a
        garden of glass; a shy giant; a pirate who cannot swim; a dream thief; an invisible dog
    """,
}

_CODE_TASKS = """
        reverses a string; checks whether a number is prime; computes the factorial of n; finds the largest
        item of a list; counts the words in a text; sorts a list of tuples by the second item; merges two
        sorted lists; removes duplicates from a list; converts Celsius to Fahrenheit; reads a CSV file and
        prints each row; computes the Fibonacci sequence; checks for a palindrome; flattens a nested list;
        counts vowels in a string; finds the common items of two lists; computes the greatest common
        divisor; implements binary search; implements bubble sort; downloads a web page; writes a dictionary
        to a JSON file; groups words by their first letter; validates an email address; generates a random
        password; computes the average of a list; rotates a list by k steps; transposes a matrix; multiplies
        two matrices; counts characters with a dictionary; implements a stack; implements a queue with two
        stacks; builds a linked list; traverses a binary tree; computes the power of a number; converts a
        number to binary; prints a multiplication table; finds missing numbers in a range; sums the digits
        of a number; capitalises every word; splits a list into chunks; finds the second largest number;
        checks if two strings are anagrams; measures how long a function takes; retries a function three
        times; parses a date string; lists all files in a folder; renames files in a folder; computes the
        median; swaps two variables; defines a class for a bank account; defines a class for a rectangle;
        simulates rolling two dice; plays rock, paper, scissors; draws a triangle of stars; removes
        punctuation from a text; replaces spaces with underscores; caches the results of a function;
        computes compound interest; checks whether a year is a leap year; finds the longest word in a
        sentence; inverts a dictionary
    """


def _split(text: str) -> tuple[str, ...]:
    return tuple(" ".join(item.split()) for item in text.split(";"))


TOPICS: dict[str, tuple[str, ...]] = {field: _split(text) for field, text in _FIELDS.items()}
CODE_TASKS: tuple[str, ...] = _split(_CODE_TASKS)

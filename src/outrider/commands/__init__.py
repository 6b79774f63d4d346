"""What the commands do, apart from parsing: run the library, show it to a person or hand it on as a document."""

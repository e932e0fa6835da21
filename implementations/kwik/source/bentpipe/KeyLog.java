package bentpipe;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.HexFormat;
import java.util.List;
import java.util.Optional;

/** The key log in the format of NSS: label, client random, secret. Without a file nothing is written. */
record KeyLog(Optional<Path> file) {

    void write(String label, byte[] clientRandom, byte[] secret) {
        HexFormat hex = HexFormat.of();
        append(List.of(label + " " + hex.formatHex(clientRandom) + " " + hex.formatHex(secret)));
    }

    synchronized void append(List<String> lines) {
        try {
            if (file.isPresent()) {
                Files.write(file.get(), lines, StandardOpenOption.CREATE, StandardOpenOption.APPEND);
            }
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }
}

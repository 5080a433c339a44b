import java.io.BufferedReader;
import java.io.File;
import java.io.InputStreamReader;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.hdfs.MiniDFSCluster;

/**
 * A name node and a data node of Hadoop's in this process, on the loopback interface, with their files in a folder. It
 * says "ready RPC-PORT HTTP-PORT"; "stop" on stdin ends the name node, which is answered by "stopped"; the end of stdin
 * ends all of it.
 */
public final class MiniDfs {
    public static void main(String[] args) throws Exception {
        MiniDFSCluster cluster = new MiniDFSCluster.Builder(new Configuration(), new File(args[0])).build();
        cluster.waitActive();
        System.out.println(
                "ready " + cluster.getNameNodePort() + " " + cluster.getNameNode().getHttpAddress().getPort());
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            if (line.equals("stop")) {
                cluster.shutdownNameNode(0);
                System.out.println("stopped");
            }
        }
        System.exit(0);
    }
}
